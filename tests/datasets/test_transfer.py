from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hopyard.datasets.pack import pack_tree
from hopyard.datasets.transfer import pull_tree as pull_tree
from hopyard.datasets.transfer import push_tree, send_blobs
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import CHUNK_BYTES, FileEntry, LinkEntry, Manifest
from hopyard.errors import IntegrityError, ServerUnavailable, SpecError, StorageFull

from .folder_transport import (
    FolderTransport,
    corrupt_blob,
    digest_of,
    list_tree,
    make_tree,
    open_transport,
    small_disk,
)

pull = pull_tree


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FolderTransport]:
    with open_transport(tmp_path / "blobs") as transport:
        yield transport


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = make_tree(
        tmp_path / "source",
        {f"small/{n}": b"%d" % n * 1000 for n in range(300)}
        | {"large": os.urandom(CHUNK_BYTES * 2 + 5), "empty": b"", "run.sh": b"echo"},
    )
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("small/7")
    (root / "hollow").mkdir()
    return root


def test_push_and_pull_round_trip(server: FolderTransport, source: Path, tmp_path: Path) -> None:
    tree = pack_tree(source)
    pushed = push_tree(tree, server)
    assert pushed.blobs == len(set(tree.blobs())) == len(server.sent)
    pull(tree.digest, tmp_path / "deep" / "dest", server)
    assert list_tree(tmp_path / "deep" / "dest") == list_tree(source)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["dest"], "nothing is left beside it"


def test_only_missing_blobs_are_sent(server: FolderTransport, source: Path) -> None:
    push_tree(pack_tree(source), server)
    server.sent.clear()
    assert push_tree(pack_tree(source), server) == (0, 0)
    (source / "small" / "5").write_text("new")
    changed = pack_tree(source)
    assert push_tree(changed, server) == (2, 3 + len(changed.encoded)), "the changed file and the manifest"
    assert set(server.sent) == {digest_of(b"new"), changed.digest}


def test_a_file_that_changes_before_it_is_sent_is_an_error(
    server: FolderTransport, source: Path, tmp_path: Path
) -> None:
    tree = pack_tree(source, cache=tmp_path / "cache")
    before = (source / "large").stat()
    with (source / "large").open("r+b") as file:
        file.seek(CHUNK_BYTES)
        file.write(b"changed")
    os.utime(source / "large", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SpecError, match="`large` changed while it was packed"):
        push_tree(tree, server)
    assert server.missing([tree.digest]) == [tree.digest] or server.missing(tree.blobs())
    push_tree(pack_tree(source, cache=tmp_path / "cache"), server)
    (source / "small" / "1").unlink()
    with pytest.raises(SpecError, match="changed"):
        send_blobs(pack_then_delete_file(source), deleted_blobs(source), server)


def pack_then_delete_file(source: Path) -> object:
    """Packs a tree, and then deletes one of its files."""
    (source / "going").write_text("going")
    tree = pack_tree(source)
    (source / "going").unlink()
    return tree


def deleted_blobs(source: Path) -> Sequence[str]:
    return [digest_of(b"going")]


def test_server_error_ends_push_and_next_push_continues(server: FolderTransport, source: Path) -> None:
    puts = 0

    def fail_at_the_second() -> None:
        nonlocal puts
        puts += 1
        if puts > 1:
            raise ServerUnavailable("away")

    server.before_put = fail_at_the_second
    with pytest.raises(ServerUnavailable):
        push_tree(pack_tree(source), server)
    server.before_put = lambda: None
    sent = len(server.sent)
    assert push_tree(pack_tree(source), server).blobs == len(pack_tree(source).blobs()) - sent


def test_blobs_outside_tree_are_not_sent(server: FolderTransport, source: Path) -> None:
    with pytest.raises(IntegrityError, match="not part of"):
        send_blobs(pack_tree(source), [digest_of(b"strange")], server)


# -- pull ----------------------------------------------------------------------------------------------------


def test_foreign_folder_is_not_changed(server: FolderTransport, source: Path, tmp_path: Path) -> None:
    tree, dest = pack_tree(source), tmp_path / "dest"
    push_tree(tree, server)
    make_tree(dest, {"mine": "precious"})
    with pytest.raises(SpecError, match="already exists"):
        pull(tree.digest, dest, server)
    assert list_tree(dest) == {"mine": ("file", b"precious", False)}
    make_tree(dest / "small", {"3": "old", "mine": "kept"})
    pull(tree.digest, dest, server, merge=True)
    kept = {"mine": ("file", b"precious", False), "small/mine": ("file", b"kept", False)}
    assert list_tree(dest) == list_tree(source) | kept
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")) == []
    (dest / "mine").unlink()
    (dest / "small" / "mine").unlink()
    pull(tree.digest, dest, server)
    (dest / "small" / "3").write_text("edited")
    with pytest.raises(SpecError, match="already exists"):
        pull(tree.digest, dest, server)
    (tmp_path / "file").write_text("x")
    with pytest.raises(SpecError, match="already exists"):
        pull(tree.digest, tmp_path / "file", server)


class BreakingTransport:
    """Passes on the given number of blobs, then the connection breaks permanently."""

    def __init__(self, inner: FolderTransport, good: int) -> None:
        self._inner, self.good, self.fetched = inner, good, 0
        self.verify, self.close = inner.verify, inner.close

    def fetch(self, manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for blob in self._inner.fetch(manifest, digests):
            if self.fetched >= self.good:
                raise ServerUnavailable("the connection broke")
            self.fetched += 1
            yield blob


def test_interrupted_pull_resumes(server: FolderTransport, source: Path, tmp_path: Path) -> None:
    tree = pack_tree(source)
    push_tree(tree, server)
    with pytest.raises(ServerUnavailable):
        pull(tree.digest, tmp_path / "dest", BreakingTransport(server, 150))
    assert not (tmp_path / "dest").exists()
    second = BreakingTransport(server, 10_000)
    pull(tree.digest, tmp_path / "dest", second)
    assert list_tree(tmp_path / "dest") == list_tree(source)
    assert 1 < second.fetched < len(tree.blobs()) - 100
    assert not list(tmp_path.glob(".dest*"))


class CorruptingTransport(BreakingTransport):
    """Flips a byte of every blob, up to the given number of times in total."""

    def fetch(self, manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for digest, data in self._inner.fetch(manifest, digests):
            if self.good > 0 and data:
                self.good -= 1
                yield digest, bytes([data[0] ^ 1]) + data[1:]
            else:
                yield digest, data


def test_corrupted_transfer_is_retried(server: FolderTransport, source: Path, tmp_path: Path) -> None:
    tree = pack_tree(source)
    push_tree(tree, server)
    pull(tree.digest, tmp_path / "dest", CorruptingTransport(server, 2))
    assert list_tree(tmp_path / "dest") == list_tree(source)
    with pytest.raises(IntegrityError, match="arrived damaged"):
        pull(tree.digest, tmp_path / "never", CorruptingTransport(server, 10_000))
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("victim", ["small/5", "large"])
def test_damaged_blob_is_reported_and_repaired_by_next_push(
    server: FolderTransport, source: Path, tmp_path: Path, victim: str
) -> None:
    tree = pack_tree(source)
    push_tree(tree, server)
    corrupt_blob(tmp_path / "blobs", (source / victim).read_bytes()[:CHUNK_BYTES])
    with pytest.raises(IntegrityError) as error:
        pull(tree.digest, tmp_path / "dest", server)
    assert "push" in error.value.hints[0] and not (tmp_path / "dest").exists()
    assert push_tree(tree, server).blobs == 1
    pull(tree.digest, tmp_path / "dest", server)
    assert list_tree(tmp_path / "dest") == list_tree(source)


class LocalTransport:
    """A source on the same machine: large blobs are files that can be read."""

    def __init__(self, inner: FolderTransport) -> None:
        self._inner, self.asked = inner, list[str]()
        self.verify, self.close = inner.verify, inner.close

    def locate(self, _manifest: str, digests: Sequence[str]) -> Sequence[str | None]:
        return self._inner.locate_files(digests)

    def fetch(self, manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        self.asked += digests
        return self._inner.fetch(manifest, digests)


@pytest.mark.parametrize("harm", ["none", "damaged", "gone", "cut", "link"])
def test_local_large_blobs_are_read_from_store_and_verified(
    server: FolderTransport, tmp_path: Path, harm: str
) -> None:
    chunk = os.urandom(CHUNK_BYTES)
    files = {"huge": chunk * 8 + b"tail" * 300_000, "middle": b"m" * 2_000_001, "small": b"s"}
    tree = pack_tree(make_tree(tmp_path / "near", files))
    push_tree(tree, server)
    (path,) = [Path(path) for path in server.locate_files([digest_of(chunk)]) if path]
    if harm == "damaged":
        corrupt_blob(tmp_path / "blobs", chunk)
    elif harm == "gone":
        path.unlink()
    elif harm == "cut":
        os.truncate(path, 1000)
    elif harm == "link":
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
    near = LocalTransport(server)
    if harm in ("none", "link"):
        pull(tree.digest, tmp_path / "dest", near)
        assert list_tree(tmp_path / "dest") == list_tree(tmp_path / "near")
        assert set(near.asked) - {digest_of(chunk)} == {tree.digest, digest_of(b"s")}
        assert (digest_of(chunk) in near.asked) == (harm == "link")
    else:
        with pytest.raises(IntegrityError, match="damaged"):
            pull(tree.digest, tmp_path / "dest", near)
        assert push_tree(tree, server).blobs == 1, "and the next push mends it"
        pull(tree.digest, tmp_path / "dest", near)
        assert list_tree(tmp_path / "dest") == list_tree(tmp_path / "near")


def put_manifest(server: FolderTransport, manifest: Manifest) -> Digest:
    encoded = manifest.encode()
    server.put_blob(digest_of(encoded), encoded)
    return digest_of(encoded)


def test_tree_with_outside_paths_is_never_written(server: FolderTransport, tmp_path: Path) -> None:
    server.put_blob(digest_of(b"evil"), b"evil")
    file = FileEntry("x", 4, (digest_of(b"evil"),))
    for bad in (
        Manifest((FileEntry("../x", 4, file.chunks),)),
        Manifest((FileEntry("/tmp/x", 4, file.chunks),)),
        Manifest((file,), (LinkEntry("l", "../.."),)),
        Manifest((FileEntry("l/x", 4, file.chunks),), (LinkEntry("l", "/tmp"),)),
        Manifest((FileEntry("x", 5, file.chunks),)),  # its only chunk has 4 bytes
    ):
        with pytest.raises((IntegrityError, SpecError)):
            pull(put_manifest(server, bad), tmp_path / "inside" / "dest", server)
        assert not (tmp_path / "inside" / "dest").exists() and not (tmp_path / "x").exists()


def test_full_disk_leaves_no_partial_tree(server: FolderTransport, source: Path, tmp_path: Path) -> None:
    tree = pack_tree(source)
    push_tree(tree, server)
    with small_disk(tmp_path / "disk", "8m") as disk:
        with pytest.raises(StorageFull, match="no space left") as error:
            pull(tree.digest, disk / "dest", server)
        assert error.value.hints and not (disk / "dest").exists()


def test_pulled_files_follow_the_umask(server: FolderTransport, source: Path, tmp_path: Path) -> None:
    tree = pack_tree(source)
    push_tree(tree, server)
    mask = os.umask(0o027)
    try:
        pull(tree.digest, tmp_path / "dest", server)
    finally:
        os.umask(mask)
    modes = [
        stat.S_IMODE((tmp_path / "dest" / name).stat().st_mode) for name in ("small/1", "run.sh", "small", "")
    ]
    assert modes == [0o640, 0o750, 0o750, 0o750]


PULLER = r"""
import os, sys
from pathlib import Path
from datasets.folder_transport import open_transport
from hopyard.datasets.transfer import pull_tree
with open_transport(Path(sys.argv[1])) as server:
    class Telling:
        def begin(self, what, total_bytes, /): pass
        def advance(self, size_bytes, /): os.write(1, b"more\x0a")
    pull_tree(sys.argv[2], Path(sys.argv[3]), server, Telling())
"""


def test_killed_pull_resumes(server: FolderTransport, source: Path, tmp_path: Path) -> None:
    tree = pack_tree(source)
    push_tree(tree, server)
    server.end()
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", PULLER, str(tmp_path / "blobs"), tree.digest, str(tmp_path / "dest")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None
    for _ in range(100):
        assert child.stdout.readline() == b"more\n"
    child.send_signal(signal.SIGKILL)
    child.stdout.close()
    child.wait()
    assert not (tmp_path / "dest").exists() or list_tree(tmp_path / "dest") == list_tree(source)
    with open_transport(tmp_path / "blobs") as second:
        counted = BreakingTransport(second, 10_000)
        pull(tree.digest, tmp_path / "dest", counted)
        assert counted.fetched < len(tree.blobs())
    assert list_tree(tmp_path / "dest") == list_tree(source)

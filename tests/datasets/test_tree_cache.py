from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopyard.datasets.pack import pack_tree
from hopyard.datasets.transfer import push_tree
from hopyard.datasets.tree_cache import TreeCache
from hopyard.domain.ids import Digest
from hopyard.errors import NotFound, ServerUnavailable, SpecError
from hopyard.private_files import remove_tree
from tests.datasets.folder_transport import FolderTransport, list_tree, make_tree, open_transport


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FolderTransport]:
    with open_transport(tmp_path / "blobs") as transport:
        yield transport
    remove_tree(tmp_path / "trees")  # read-only folders would block pytest's cleanup


def push_sample(server: FolderTransport, root: Path, size: int = 1000) -> Digest:
    make_tree(root, {"a": b"a" * size, "d/run.sh": root.name})
    (root / "d" / "run.sh").chmod(0o755)
    (root / "link").symlink_to("d/run.sh")
    tree = pack_tree(root)
    push_tree(tree, server)
    return tree.digest


def fetch_not_allowed(_manifest: str, _digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    raise AssertionError("it should be here already")


def test_cache_is_filled_once_and_read_only(server: FolderTransport, tmp_path: Path) -> None:
    digest, cache = push_sample(server, tmp_path / "one"), TreeCache(tmp_path / "trees")
    with cache.open_tree(digest, server.fetch) as tree:
        assert list_tree(tree) == list_tree(tmp_path / "one")
        assert not any(
            path.lstat().st_mode & 0o222 for path in [tree, *tree.rglob("*")] if not path.is_symlink()
        )
    with cache.open_tree(digest, fetch_not_allowed) as second:
        assert second == tree
    with pytest.raises(SpecError), cache.open_tree(Digest("../x"), fetch_not_allowed):
        pass


def test_replicas_of_gang_share_one_cache_fill(server: FolderTransport, tmp_path: Path) -> None:
    """The filling replica holds it until the end of the gang, for which no other replica may have to wait."""
    digest = push_sample(server, tmp_path / "one")
    missed, together = threading.Barrier(4), threading.Barrier(3)

    class Missing(TreeCache):
        first = True

        def _lock(self, manifest: Digest, how: int) -> int:
            if how & fcntl.LOCK_EX and self.first:  # all have looked, and want to fill it
                self.first = False
                missed.wait(timeout=30)
            return super()._lock(manifest, how)

    def replica() -> None:
        with Missing(tmp_path / "trees").open_tree(digest, server.fetch):
            together.wait(timeout=20)

    (tmp_path / "trees").mkdir()
    with (tmp_path / "trees" / f".{digest}.lock").open("w") as looks, ThreadPoolExecutor(3) as gang:
        fcntl.flock(looks, fcntl.LOCK_SH)
        replicas = [gang.submit(replica) for _ in range(3)]
        missed.wait(timeout=30)
        fcntl.flock(looks, fcntl.LOCK_UN)
        for each in replicas:
            each.result()


def overwrite(tree: Path) -> None:
    (tree / "a").chmod(0o600)
    with (tree / "a").open("r+b") as file:
        file.write(b"b")
    os.utime(tree / "a", ns=((tree / "a").stat().st_atime_ns, (tree / "d" / "run.sh").stat().st_mtime_ns))
    (tree / "a").chmod(0o400)


def add(tree: Path) -> None:
    (tree / "d").chmod(0o700)
    (tree / "d" / "index.tmp").write_text("beside the data")
    (tree / "d").chmod(0o500)


def remove(tree: Path) -> None:
    (tree / "d").chmod(0o700)
    (tree / "d" / "run.sh").unlink()


def redirect_link(tree: Path) -> None:
    tree.chmod(0o700)
    (tree / "link").unlink()
    (tree / "link").symlink_to("a")


def replace_tree(tree: Path) -> None:
    tree.rename(tree.with_name("elsewhere"))
    make_tree(tree, {"a": b"b" * 1000})


@pytest.mark.parametrize("change", [overwrite, add, remove, redirect_link, replace_tree, remove_tree])
@pytest.mark.parametrize("in_use", [False, True])
def test_tree_changed_by_run_is_fetched_again(
    server: FolderTransport, tmp_path: Path, change: Callable[[Path], None], in_use: bool
) -> None:
    digest, changed = push_sample(server, tmp_path / "one"), list[str]()
    cache = TreeCache(tmp_path / "trees", on_changed=changed.append)
    with cache.open_tree(digest, server.fetch) as tree, ExitStack() as stack:
        if in_use:  # by the run that changed it; the next run does not wait for its end
            stack.enter_context(cache.open_tree(digest, fetch_not_allowed))
        change(tree)
        with cache.open_tree(digest, server.fetch):
            assert list_tree(tree) == list_tree(tmp_path / "one")
    with cache.open_tree(digest, fetch_not_allowed):
        assert list_tree(tree) == list_tree(tmp_path / "one")
    assert changed == ([digest] if change is not remove_tree else [])
    assert not list((tmp_path / "trees").glob(".gone*"))


def test_unchanged_bytes_are_retained_and_changed_links_detected(
    server: FolderTransport, tmp_path: Path
) -> None:
    digest, changed = push_sample(server, tmp_path / "one"), list[str]()
    cache = TreeCache(tmp_path / "trees", on_changed=changed.append)
    with cache.open_tree(digest, server.fetch) as tree:
        os.link(tree / "a", tmp_path / "mine")
        (tree / "d").chmod(0o700)
    with cache.open_tree(digest, fetch_not_allowed):
        assert (tree / "d").stat().st_mode & 0o777 == 0o500
    (tmp_path / "mine").chmod(0o600)
    (tmp_path / "mine").write_bytes(b"x" * 1000)
    assert [is_intact for _, is_intact in cache.verify()] == [False]
    with cache.open_tree(digest, server.fetch):
        assert list_tree(tree) == list_tree(tmp_path / "one")
    assert changed == [digest] and [is_intact for _, is_intact in cache.verify()] == [True]


def test_a_checkout_is_private_and_writable(server: FolderTransport, tmp_path: Path) -> None:
    digest, cache = push_sample(server, tmp_path / "one"), TreeCache(tmp_path / "trees")
    cache.checkout(digest, tmp_path / "work", server.fetch)
    assert list_tree(tmp_path / "work") == list_tree(tmp_path / "one")
    (tmp_path / "work" / "a").write_text("mine")
    (tmp_path / "work" / "d" / "new").write_text("mine")
    with cache.open_tree(digest, fetch_not_allowed) as tree:
        assert list_tree(tree) == list_tree(tmp_path / "one")
    with pytest.raises(NotFound):
        TreeCache(tmp_path / "empty").checkout(digest, tmp_path / "other")


def test_interrupted_fetch_leaves_no_tree_and_resumes(server: FolderTransport, tmp_path: Path) -> None:
    digest, cache = push_sample(server, tmp_path / "one"), TreeCache(tmp_path / "trees")

    calls: list[Sequence[str]] = []

    def broken(manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        calls.append(digests)
        if len(calls) <= 2:  # the manifest and one blob
            yield from server.fetch(manifest, digests[:1])
        if len(calls) > 1:
            raise ServerUnavailable("away")

    with pytest.raises(ServerUnavailable), cache.open_tree(digest, broken):
        pass
    assert not (tmp_path / "trees" / digest).exists()
    fetched: list[str] = []

    def counting(manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        fetched.extend(digests)
        return server.fetch(manifest, digests)

    with cache.open_tree(digest, counting) as tree:
        assert list_tree(tree) == list_tree(tmp_path / "one")
    assert fetched == [digest, calls[1][1]], "the blob that came over is not fetched again"


def test_least_recently_used_tree_is_evicted_unless_in_use(server: FolderTransport, tmp_path: Path) -> None:
    digests = [push_sample(server, tmp_path / name, 100_000) for name in ("one", "two", "three")]
    cache = TreeCache(tmp_path / "trees", limit_bytes=250_000)

    def here() -> list[bool]:
        return [(tmp_path / "trees" / digest).is_dir() for digest in digests]

    for n, digest in enumerate(digests[:2]):
        with cache.open_tree(digest, server.fetch):
            pass
        os.utime(tmp_path / "trees" / f".{digest}.lock", (n, n))
    with cache.open_tree(digests[2], server.fetch):
        assert here() == [False, True, True]
    with cache.open_tree(digests[1], fetch_not_allowed), cache.open_tree(digests[0], server.fetch):
        assert here() == [True, True, False], "the one in use stays, though it was used before"
        TreeCache(tmp_path / "trees", limit_bytes=0).trim()
        assert here() == [True, True, False]
    TreeCache(tmp_path / "trees", limit_bytes=0).trim()
    assert not any(here()) and not list((tmp_path / "trees").iterdir())


def test_a_tree_larger_than_the_limit_is_fetched_once_and_used(
    server: FolderTransport, tmp_path: Path
) -> None:
    digest, cache = (
        push_sample(server, tmp_path / "one", 100_000),
        TreeCache(tmp_path / "trees", limit_bytes=1),
    )
    manifests: list[str] = []

    def counting(manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        manifests.extend(digest for digest in digests if digest == manifest)
        assert len(manifests) == 1, "it was evicted before it was used"
        return server.fetch(manifest, digests)

    with cache.open_tree(digest, counting) as tree:
        assert list_tree(tree) == list_tree(tmp_path / "one")
    cache.trim()
    assert not tree.exists()


def test_remains_of_interrupted_fetch_are_evicted_eventually(server: FolderTransport, tmp_path: Path) -> None:
    digest, other = push_sample(server, tmp_path / "one"), push_sample(server, tmp_path / "two")
    cache = TreeCache(tmp_path / "trees")

    def broken(manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        if list(digests) != [manifest]:
            raise ServerUnavailable("away")
        return server.fetch(manifest, digests)

    for manifest in (digest, other):
        with pytest.raises(ServerUnavailable), cache.open_tree(manifest, broken):
            pass
    os.utime(tmp_path / "trees" / f".{digest}.lock", (1, 1))
    cache.trim()
    assert sorted(path.name for path in (tmp_path / "trees").iterdir()) == [
        f".{other}.lock",
        f".{other}.part",
    ]


def test_small_trees_are_verified_after_reboot(server: FolderTransport, tmp_path: Path) -> None:
    digest, cache = push_sample(server, tmp_path / "one"), TreeCache(tmp_path / "trees")
    with cache.open_tree(digest, server.fetch) as tree:
        pass
    note = tmp_path / "trees" / f".{digest}.lock"
    content = note.read_text()

    def restart() -> None:
        note.write_text(content.replace('"boot": "', '"boot": "earlier '))

    restart()
    with cache.open_tree(digest, fetch_not_allowed):
        pass
    assert json.loads(note.read_text())["boot"] == json.loads(content)["boot"]
    restart()
    (tree / "a").chmod(0o644)
    os.truncate(tree / "a", 0)  # the state of a recently written file after a power failure
    with cache.open_tree(digest, server.fetch) as tree:
        assert list_tree(tree) == list_tree(tmp_path / "one")


USER = """
import sys
from pathlib import Path
from tests.datasets.folder_transport import open_transport
from hopyard.datasets.tree_cache import TreeCache
root, digest, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
fetched = []
with open_transport(root / "blobs") as server:
    def fetch(manifest, digests):
        if not fetched:
            fetched.append(1)
            with open(root / "fills", "a") as fills: fills.write("x")
        yield from server.fetch(manifest, digests)
        if mode == "hang":
            print("fetching", flush=True); sys.stdin.read()
    with TreeCache(root / "trees").open_tree(digest, fetch) as tree:
        print(sorted(p.name for p in tree.iterdir()), flush=True)
        sys.stdin.read()
"""


def user(tmp_path: Path, digest: str, mode: str = "") -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", USER, str(tmp_path), digest, mode]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def test_concurrent_processes_fill_cache_once(server: FolderTransport, tmp_path: Path) -> None:
    digest = push_sample(server, tmp_path / "one")
    users = [user(tmp_path, digest) for _ in range(4)]
    lines = [child.stdout.readline() for child in users if child.stdout]
    assert lines == [b"['a', 'd', 'link']\n"] * 4
    assert (tmp_path / "fills").read_text() == "x"
    TreeCache(tmp_path / "trees", limit_bytes=0).trim()
    assert (tmp_path / "trees" / digest).is_dir(), "it is in use"
    users[0].kill()
    for child in users:
        child.communicate(timeout=60)
    TreeCache(tmp_path / "trees", limit_bytes=0).trim()
    assert not (tmp_path / "trees" / digest).exists(), "the dead use nothing"


def test_waiting_process_takes_over_killed_fetch(server: FolderTransport, tmp_path: Path) -> None:
    digest = push_sample(server, tmp_path / "one")
    first = user(tmp_path, digest, "hang")
    assert first.stdout and first.stdout.readline() == b"fetching\n"
    second = user(tmp_path, digest)
    first.send_signal(signal.SIGKILL)
    assert second.stdout and second.stdout.readline() == b"['a', 'd', 'link']\n"
    for child in (first, second):
        child.communicate(timeout=60)
    assert (tmp_path / "fills").read_text() == "xx"

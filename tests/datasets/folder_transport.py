"""A transport over real blobs in a folder, trees on disk, and small tmpfs mounts for the tests of
datasets."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from hopyard.domain.ids import Digest
from hopyard.stores.blobs.folder import FolderBlobs

IS_ROOT = os.geteuid() == 0


def digest_of(data: bytes) -> Digest:
    return Digest(blake3(data).hexdigest())


class FolderTransport:
    """Transfers directly to and from a FolderBlobs, as a client does. Records the digests sent."""

    def __init__(self, root: Path) -> None:
        self.blobs = FolderBlobs(root)
        self.sent: list[str] = []
        self.before_put: Callable[[], None] = lambda: None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    def missing(self, digests: Sequence[str]) -> list[str]:
        return list(self._wait(self.blobs.find_missing([Digest(d) for d in digests])))

    def put_blob(self, digest: str, data: bytes) -> None:
        self.before_put()
        self._wait(self.blobs.put(Digest(digest), data))
        self.sent.append(digest)

    def put_pack(self, blobs: Sequence[tuple[str, bytes]]) -> None:
        self.before_put()
        self._wait(self.blobs.put_many([(Digest(d), data) for d, data in blobs]))
        self.sent += [d for d, _ in blobs]

    def fetch(self, manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for digest in digests:
            yield digest, self._wait(self.blobs.get(Digest(digest)))

    def locate_files(self, digests: Sequence[str]) -> Sequence[str | None]:
        """Not named `locate`, so that the transfer uses its default path."""
        return list(self._wait(self.blobs.locate([Digest(d) for d in digests])))

    def verify(self, digest: str) -> bool:
        from hopyard.errors import HopyardError

        try:
            self._wait(self.blobs.get(Digest(digest)))
        except HopyardError:
            return False
        return True

    def close(self) -> None:
        """Nothing to close in a thread."""

    def end(self) -> None:
        if self._loop.is_closed():
            return
        self._wait(self.blobs.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def open_transport(root: Path) -> Iterator[FolderTransport]:
    result = FolderTransport(root)
    try:
        yield result
    finally:
        result.end()


def make_tree(root: Path, files: Mapping[str, bytes | str]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        full = root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def list_tree(root: Path) -> dict[str, tuple[Any, ...]]:
    """Returns everything below `root` with type and contents."""
    entries: dict[str, tuple[Any, ...]] = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder) / name
            key = path.relative_to(root).as_posix()
            if path.is_symlink():
                entries[key] = ("link", str(path.readlink()))
            elif path.is_dir():
                entries[key] = ("folder",)
            else:
                entries[key] = ("file", path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return entries


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mounts a file system of `size`, or skips the test where mounting is not permitted."""
    folder.mkdir()
    if (
        not IS_ROOT
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("needs the right to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def files_of(root: Path, pattern: str) -> list[Path]:
    return list(root.glob(pattern))


def corrupt_blob(blobs_root: Path, data: bytes) -> None:
    """Flips a byte of `data` wherever the store holds it."""
    result = False
    for path in [*blobs_root.glob("packs/*"), *blobs_root.glob("large/*/*")]:
        content = path.read_bytes()
        at = content.find(data)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + len(data) // 2)
                file.write(bytes([content[at + len(data) // 2] ^ 0xFF]))
            result = True
    assert result, "the store does not hold these bytes"

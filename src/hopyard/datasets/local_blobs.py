"""Reads blobs directly from the server's files if the server runs on this machine.

No file is trusted. A blob that is missing, unreadable or has another digest is fetched through the server,
which then detects the damage itself.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from blake3 import blake3

from hopyard.domain.ids import Digest
from hopyard.domain.manifest import CHUNK_BYTES

LARGE_BYTES = 1024 * 1024  # smaller blobs are stored and sent together
_MAX_DIGESTS_PER_REQUEST = 20_000
_thread_buffers = threading.local()


@runtime_checkable
class LocalBlobSource(Protocol):
    """A source that may know the paths of blobs on this machine."""

    def locate(self, manifest: str, digests: Sequence[str]) -> Sequence[str | None]:
        """Returns a path to try for each blob. All are None if the server runs on another machine."""
        ...


def find_files(source: object, manifest: Digest, digests: Sequence[tuple[Digest, int]]) -> dict[Digest, str]:
    """Returns the paths of large blobs that can be read without the server, by digest."""
    large_digests = [digest for digest, size in digests if size >= LARGE_BYTES]
    if not isinstance(source, LocalBlobSource):
        return {}
    paths: dict[Digest, str] = {}
    for start in range(0, len(large_digests), _MAX_DIGESTS_PER_REQUEST):
        batch = large_digests[start : start + _MAX_DIGESTS_PER_REQUEST]
        batch_paths = source.locate(manifest, batch)
        paths.update(
            (digest, path) for digest, path in zip(batch, batch_paths, strict=True) if path is not None
        )
    return paths


def read_checked(path: str, digest: Digest, size: int) -> memoryview | None:
    """Reads the blob in `path` and returns it, or None if it is missing or its digest differs.

    The memory is aligned for direct writes. It belongs to this thread, and the next call overwrites it.
    """
    if size > CHUNK_BYTES:
        return None
    buffer: mmap.mmap | None = getattr(_thread_buffers, "buffer", None)
    if buffer is None:
        buffer = _thread_buffers.buffer = mmap.mmap(-1, CHUNK_BYTES + mmap.PAGESIZE)
    try:
        descriptor = _open(path)
        try:
            if os.fstat(descriptor).st_size != size:
                return None
            view = memoryview(buffer)
            aligned_size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            if os.preadv(descriptor, [view[:aligned_size]], 0) != size:
                return None
        finally:
            os.close(descriptor)
    except OSError:
        return None
    data = view[:size]
    return data if blake3(data).hexdigest() == digest else None


def _open(path: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags)

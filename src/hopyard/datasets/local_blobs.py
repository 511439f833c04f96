"""Blobs read straight from the server's files, where the server says that they lie on this machine.

Nothing is trusted: what is not there, not readable or not what its digest says is fetched through the server,
which then notices damage by itself.
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

LARGE_BYTES = 1024 * 1024  # smaller blobs lie together and travel together
_MAX_DIGESTS_PER_REQUEST = 20_000
_thread_buffers = threading.local()


@runtime_checkable
class LocalBlobSource(Protocol):
    """A source that may know files of this machine."""

    def locate(self, manifest: str, digests: Sequence[str]) -> Sequence[str | None]:
        """For each blob a path that can be tried; all None where the server is another machine."""
        ...


def find_files(source: object, manifest: Digest, digests: Sequence[tuple[Digest, int]]) -> dict[Digest, str]:
    """Where large blobs may be read without the server's help.
    Only blobs that lie on this machine are named."""
    large = [digest for digest, size in digests if size >= LARGE_BYTES]
    if not isinstance(source, LocalBlobSource):
        return {}
    found: dict[Digest, str] = {}
    for at in range(0, len(large), _MAX_DIGESTS_PER_REQUEST):
        asked = large[at : at + _MAX_DIGESTS_PER_REQUEST]
        paths = source.locate(manifest, asked)
        found.update((digest, path) for digest, path in zip(asked, paths, strict=True) if path is not None)
    return found


def read_checked(path: str, digest: Digest, size: int) -> memoryview | None:
    """The blob in `path`, in memory of this thread that the next call uses again, aligned for direct writes;
    None when it is not there or not right."""
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
            whole = memoryview(buffer)
            room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            if os.preadv(descriptor, [whole[:room]], 0) != size:
                return None
        finally:
            os.close(descriptor)
    except OSError:
        return None
    data = whole[:size]
    return data if blake3(data).hexdigest() == digest else None


def _open(path: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_DIRECT)
    except OSError as bad:
        if bad.errno != errno.EINVAL:
            raise
        return os.open(path, flags)

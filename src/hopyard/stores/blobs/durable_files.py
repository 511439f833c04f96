"""Writes whole files durably, past the page cache if the file system allows it.

Blobs are written once, and must be on disk before a push is answered. The page cache would copy every byte
once more, and evict pages of running trainings. O_DIRECT does neither. It was two to six times faster than
`write` + `fsync` on ext4 in a virtual machine (512 MiB in blobs of 8 MiB: 0.2 s against 0.5 … 1.4 s).
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from hopyard.errors import StorageFull
from hopyard.private_files import open_file

TEMPORARY_PREFIX = ".tmp-"
_WRITE_BYTES = 1024 * 1024  # bytes of one direct write; larger writes were not faster
_ALIGNMENT = 4096
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_thread_local = threading.local()  # one aligned buffer per thread


def write_durably(folder: Path, parts: Iterable[bytes]) -> Path:
    """Writes `parts`, concatenated, to a new file in `folder` with a temporary name, and returns its path.

    The content is on disk on return; its name is not, see `flush_folder`. Raises StorageFull, leaving
    nothing.
    """
    path = folder / f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"
    try:
        descriptor, direct = _create(path)
        try:
            (_write_direct if direct else _write_buffered)(descriptor, parts)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        path.unlink(missing_ok=True)
        if error.errno in DISK_FULL_ERRNOS:
            raise disk_full_error() from error
        raise
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def disk_full_error() -> StorageFull:
    return StorageFull(
        "no space left on the server's disk for blobs",
        hints=("free some space, or remove runs and datasets with `hop rm` and `hop dataset rm`",),
    )


def flush_folder(folder: Path) -> None:
    """Makes the entries of `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create(path: Path) -> tuple[int, bool]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return open_file(path, flags | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    path.unlink(missing_ok=True)  # the file was created before the file system refused
    return open_file(path, flags), False


def _write_buffered(descriptor: int, parts: Iterable[bytes]) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]


def _write_direct(descriptor: int, parts: Iterable[bytes]) -> None:
    """Collects the parts in an aligned buffer, and writes it whenever it is full. The last write is padded,
    and the file is truncated afterwards."""
    buffer = _buffer()
    filled = total = 0
    for part in parts:
        view = memoryview(part)
        total += len(view)
        while view:
            copied = min(_WRITE_BYTES - filled, len(view))
            buffer[filled : filled + copied] = view[:copied]
            filled += copied
            view = view[copied:]
            if filled == _WRITE_BYTES:
                _write_all(descriptor, buffer, _WRITE_BYTES)
                filled = 0
    if filled:
        _write_all(descriptor, buffer, -(-filled // _ALIGNMENT) * _ALIGNMENT)
    os.ftruncate(descriptor, total)


def _write_all(descriptor: int, buffer: mmap.mmap, size: int) -> None:
    with memoryview(buffer) as view:
        written = os.write(descriptor, view[:size])
        while written < size:  # a disk that becomes full accepts a part before it fails
            count = os.write(descriptor, view[written:size])
            if not count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += count


def _buffer() -> mmap.mmap:
    buffer: mmap.mmap | None = getattr(_thread_local, "buffer", None)
    if buffer is None:
        buffer = _thread_local.buffer = mmap.mmap(-1, _WRITE_BYTES)
    return buffer

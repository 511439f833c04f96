"""Whole files written durably, past the page cache where the file system lets us.

Blobs are written once and have to be on disk before a push is answered. Going through the page cache would
copy every byte once more and push out what running trainings keep there; O_DIRECT does neither, and was two
to six times faster than `write` + `fsync` on ext4 in a virtual machine (512 MiB in blobs of 8 MiB: 0.2 s
against 0.5 … 1.4 s).
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
_WRITE_BYTES = 1024 * 1024  # bytes of one direct write; larger ones were not faster
_ALIGNMENT = 4096
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_thread_local = threading.local()  # one aligned buffer per thread


def write_durably(folder: Path, parts: Iterable[bytes]) -> Path:
    """Write `parts` one after another to a new file in `folder` with a temporary name; on disk when this
    returns (its name is not: see `flush_folder`). Raises StorageFull, leaving nothing."""
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
        "no space left where the server keeps its blobs",
        hints=("free some space, or remove runs and datasets with `hop rm` and `hop dataset rm`",),
    )


def flush_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
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
    path.unlink(missing_ok=True)  # created before the file system refused
    return open_file(path, flags), False


def _write_buffered(descriptor: int, parts: Iterable[bytes]) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]


def _write_direct(descriptor: int, parts: Iterable[bytes]) -> None:
    """Gather into an aligned buffer and write it whenever it is full; the last, padded write is cut back to
    size."""
    buffer = _buffer()
    filled = total = 0
    for part in parts:
        view = memoryview(part)
        total += len(view)
        while view:
            taken = min(_WRITE_BYTES - filled, len(view))
            buffer[filled : filled + taken] = view[:taken]
            filled += taken
            view = view[taken:]
            if filled == _WRITE_BYTES:
                _write_all(descriptor, buffer, _WRITE_BYTES)
                filled = 0
    if filled:
        _write_all(descriptor, buffer, -(-filled // _ALIGNMENT) * _ALIGNMENT)
    os.ftruncate(descriptor, total)


def _write_all(descriptor: int, buffer: mmap.mmap, size: int) -> None:
    with memoryview(buffer) as whole:
        done = os.write(descriptor, whole[:size])
        while done < size:  # a disk that fills up takes a part before it refuses
            more = os.write(descriptor, whole[done:size])
            if not more:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done += more


def _buffer() -> mmap.mmap:
    found: mmap.mmap | None = getattr(_thread_local, "buffer", None)
    if found is None:
        found = _thread_local.buffer = mmap.mmap(-1, _WRITE_BYTES)
    return found

"""Locks (flock) that last as long as a process holds a file open. Standard library only: the SDK uses this
module inside users' processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hopyard.private_files import open_below, open_file

# the last two: another kind of file is in its place, in a damaged folder
_MISSING_FILE_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@contextmanager
def try_lock(path: str | Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[bool]:
    """Yields whether the lock of a file was acquired. The lock is held within the block. flags: how the file
    is opened. Raises OSError."""
    descriptor = open_file(path, flags)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            acquired = True
        except BlockingIOError:
            acquired = False
        yield acquired
    finally:
        os.close(descriptor)


def is_locked(path: str | Path, *, parent_folder: Path | None = None) -> bool:
    """Returns whether a process holds the exclusive lock of a file. The check takes a shared lock for a
    moment, so a process that wants the lock must try more than once.

    parent_folder: a folder that other programs write to; `path` is then below it (see
    `private_files.open_below`). Raises OSError, but not for a missing file.
    """
    try:
        descriptor = (
            open_file(path, os.O_RDWR)
            if parent_folder is None
            else open_below(parent_folder, str(path), os.O_RDWR)
        )
    except _MISSING_FILE_ERRORS:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False

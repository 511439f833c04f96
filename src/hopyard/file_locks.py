"""Locks (flock) that live as long as a process holds a file open.
Standard library only: the SDK uses it inside users' processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hopyard.private_files import open_below, open_file

# something else lies there: a damaged folder
_MISSING_FILE_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@contextmanager
def try_lock(path: str | Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[bool]:
    """Whether the lock of a file was free; it is held within the block then. flags: how the file is opened.
    Raises OSError."""
    descriptor = open_file(path, flags)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(descriptor)


def is_locked(path: str | Path, *, parent_folder: Path | None = None) -> bool:
    """Whether a process holds the lock of a file for itself. It is taken shared for a moment: a process that
    wants it tries more than once. parent_folder: a folder that other programs write to, in which `path` is
    then (see `private_files.open_inside`). Raises OSError, but not for a file that is not there."""
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

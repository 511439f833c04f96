"""Locks (flock) that live as long as a process holds a file open. Standard library only: the SDK uses it inside users' processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hopyard.private_files import open_file

_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)  # something else lies there: a damaged folder


@contextmanager
def try_lock(path: str | Path, flags: int = os.O_RDWR | os.O_CREAT, *, shared: bool = False) -> Iterator[bool]:
    """Whether the lock of a file was free; it is held within the block then. flags: how the file is opened. Raises OSError."""
    descriptor = open_file(path, flags)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(descriptor)


def is_locked(path: str | Path) -> bool:
    """Whether a process holds the lock of a file for itself. It is taken shared for a moment: a process that wants it tries more than once.
    Raises OSError, but not for a file that is not there."""
    try:
        with try_lock(path, os.O_RDWR, shared=True) as free:
            return not free
    except _NOT_THERE:
        return False

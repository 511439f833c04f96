"""Builds a file once for all processes of a node. The file is complete or absent, even after a crash."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from hopyard.private_files import make_folder, open_file

_UNUSED_AFTER_S = 30 * 24 * 3600.0  # files unused for this time are removed


def build_once(path: Path, write: Callable[[IO[bytes]], None], *, is_valid: Callable[[Path], bool]) -> Path:
    """Returns `path`, written by `write` unless it exists and `is_valid` accepts it.

    One of several concurrent callers writes, the others wait; if it is killed, the next caller restarts.
    Removes files beside it that were not used for 30 days. Raises the errors of `write`.
    """
    if not _exists_valid(path, is_valid):
        make_folder(path.parent)
        lock = open_file(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _exists_valid(path, is_valid):
                _write(path, write)
                _remove_unused(path)
        finally:
            os.close(lock)
    with suppress(OSError):
        os.utime(path)  # the last use
    return path


def _exists_valid(path: Path, is_valid: Callable[[Path], bool]) -> bool:
    return path.is_file() and is_valid(path)


def _write(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb", opener=open_file) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _remove_unused(path: Path) -> None:
    """Removes unused files. Open files stay readable. Lock files stay: they are empty, and a process may wait
    for one."""
    for other in path.parent.glob(f"*{path.suffix}"):
        with suppress(OSError):
            if other != path and other.stat().st_mtime < time.time() - _UNUSED_AFTER_S:
                other.unlink()

"""Giving blocks in the middle of a file back to its disk: they read as zeros from then on, and the file keeps
its size."""

from __future__ import annotations

import ctypes
import os

from hopyard.private_files import open_plain

BLOCK = 65_536  # a multiple of every usual file system's
_PUNCH_HOLE_KEEP_SIZE = 3
_libc = ctypes.CDLL(None, use_errno=True)


def punch(path: str, begin: int, end: int) -> int:
    """Give back the whole blocks of [begin, end); up to where that was done.
    Raises OSError where the file system cannot."""
    begin, end = -(-begin // BLOCK) * BLOCK, end // BLOCK * BLOCK
    if end <= begin:
        return begin
    descriptor = open_plain(path, os.O_WRONLY)
    try:
        if _libc.fallocate(
            descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(begin), ctypes.c_long(end - begin)
        ):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(descriptor)
    return end

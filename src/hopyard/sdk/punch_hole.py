"""Giving blocks in the middle of a file back to its disk: they read as zeros from then on, and the file keeps
its size."""

from __future__ import annotations

import ctypes
import os

from hopyard.private_files import open_no_follow

BLOCK_BYTES = 65_536  # a multiple of every usual file system's
_PUNCH_HOLE_KEEP_SIZE = 3
_libc = ctypes.CDLL(None, use_errno=True)


def punch_hole(path: str, start: int, end: int) -> int:
    """Give back the whole blocks of [begin, end); up to where that was done.
    Raises OSError where the file system cannot."""
    start, end = -(-start // BLOCK_BYTES) * BLOCK_BYTES, end // BLOCK_BYTES * BLOCK_BYTES
    if end <= start:
        return start
    descriptor = open_no_follow(path, os.O_WRONLY)
    try:
        if _libc.fallocate(
            descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(start), ctypes.c_long(end - start)
        ):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(descriptor)
    return end

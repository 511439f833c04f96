"""Releases the disk blocks in the middle of a file. They read as zeros from then on, and the file keeps its
size.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from hopyard.private_files import open_below

BLOCK_BYTES = 65_536  # a multiple of the block size of every common file system
_PUNCH_HOLE_KEEP_SIZE = 3
_libc = ctypes.CDLL(None, use_errno=True)


def punch_hole(path: str, start: int, end: int) -> int:
    """Releases the whole blocks of [start, end) and returns the offset up to which that was done. Raises
    OSError if the file system does not support it.
    """
    start, end = -(-start // BLOCK_BYTES) * BLOCK_BYTES, end // BLOCK_BYTES * BLOCK_BYTES
    if end <= start:
        return start
    folder, name = Path(path).parent, os.path.basename(path)
    # the script may have replaced the folder of its streams by a link to that of another run
    descriptor = open_below(folder.parent, f"{folder.name}/{name}", os.O_WRONLY)
    try:
        if _libc.fallocate(
            descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(start), ctypes.c_long(end - start)
        ):
            error_number = ctypes.get_errno()
            raise OSError(error_number, os.strerror(error_number))
    finally:
        os.close(descriptor)
    return end

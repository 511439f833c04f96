"""How glibc treats freed memory, set while the process runs. With another C library nothing is set."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # <malloc.h>


def configure_malloc(
    *, mmap_bytes: int | None = None, trim_bytes: int | None = None, arenas: int | None = None
) -> None:
    """mmap_bytes: blocks from this size on (at most 32 MiB) are returned to the system when they are freed.
    trim_bytes: how much memory may be free at the end of the heap before it is returned. arenas: heaps that
    threads share. None keeps the default of glibc."""
    options = {_M_MMAP_THRESHOLD: mmap_bytes, _M_TRIM_THRESHOLD: trim_bytes, _M_ARENA_MAX: arenas}
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in options.items():
            if value is not None:
                mallopt(option, value)

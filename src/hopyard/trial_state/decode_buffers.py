"""Memory that decoded states lie in, used again once nothing of a state is left.

Fresh memory costs several times as much as copying into it: the system has to find and zero each page.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from contextlib import suppress

_MAX_SPARE_BUFFERS = 3  # arenas without a state that are kept
_MAX_SIZE_RATIO = 2  # an arena is used for states down to its size over this
_PAGE = mmap.PAGESIZE
# MADV_POPULATE_WRITE: have the pages now, not one by one when they are written (Linux 5.14)
_POPULATE_WRITE = 23
_MIN_HUGE_PAGE_BYTES = 4 << 20  # bytes from which pages of 2 MB pay


class _DecodeBuffer:
    """holder: every view of the memory holds a reference to it, and with the view every tensor that lies
    there."""

    __slots__ = ("capacity", "holder", "unused")

    def __init__(self, size: int) -> None:
        self.capacity = max(-(-size // _PAGE) * _PAGE, _PAGE)
        memory = mmap.mmap(-1, self.capacity)
        if self.capacity >= _MIN_HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            for advice in (mmap.MADV_HUGEPAGE, _POPULATE_WRITE):
                with suppress(OSError):  # a kernel without it
                    memory.madvise(advice)
        self.holder = (ctypes.c_char * self.capacity).from_buffer(memory)
        self.unused = sys.getrefcount(self.holder)

    def is_free(self) -> bool:
        return sys.getrefcount(self.holder) == self.unused

    def view(self, size: int) -> memoryview:
        return memoryview(self.holder).cast("B")[:size]


class DecodeBuffers:
    """Of one process. May be used from any thread."""

    def __init__(self) -> None:
        self._buffers: list[_DecodeBuffer] = []
        self._lock = threading.Lock()

    def acquire(self, size: int) -> memoryview:
        """Writable memory of this size, with anything in it, which is nobody else's as long as the view, or a
        part of it, lives."""
        with self._lock:
            found = self._find_free(size)
            if found is not None:
                return found.view(size)
        made = _DecodeBuffer(size)
        view = made.view(size)
        with self._lock:
            self._buffers.append(made)
        return view

    def reserve(self, size: int) -> None:
        """Have memory for a state of about this size, beside what is in use."""
        with self._lock:
            if self._find_free(size) is not None:
                return
        made = _DecodeBuffer(size)
        with self._lock:
            self._buffers.append(made)

    def _find_free(self, size: int) -> _DecodeBuffer | None:
        """One that fits. Gives up those that are too many where none does."""
        free = [one for one in self._buffers if one.is_free()]
        fitting = [one for one in free if size <= one.capacity <= max(size * _MAX_SIZE_RATIO, _PAGE)]
        if fitting:
            return min(fitting, key=lambda one: one.capacity)
        for one in free[: max(len(free) - _MAX_SPARE_BUFFERS + 1, 0)]:
            self._buffers.remove(one)
        return None

    @property
    def allocated_bytes(self) -> int:
        with self._lock:
            return sum(one.capacity for one in self._buffers)

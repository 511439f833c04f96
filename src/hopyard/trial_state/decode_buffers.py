"""Memory for decoded states, reused when no part of a state is referenced any more.

New memory costs several times as much as a copy into it: the kernel has to find and zero each page.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from contextlib import suppress

_MAX_SPARE_BUFFERS = 3  # free buffers that are kept
_MAX_SIZE_RATIO = 2  # a buffer is used for states down to its size divided by this
_PAGE = mmap.PAGESIZE
# MADV_POPULATE_WRITE: allocates the pages at once, not one by one on the first write (Linux 5.14)
_POPULATE_WRITE = 23
_MIN_HUGE_PAGE_BYTES = 4 << 20  # from this size pages of 2 MB are faster


class _DecodeBuffer:
    """holder: every view of the memory, and with it every tensor in it, holds a reference to this object."""

    __slots__ = ("capacity", "holder", "unused")

    def __init__(self, size: int) -> None:
        self.capacity = max(-(-size // _PAGE) * _PAGE, _PAGE)
        memory = mmap.mmap(-1, self.capacity)
        if self.capacity >= _MIN_HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            for advice in (mmap.MADV_HUGEPAGE, _POPULATE_WRITE):
                with suppress(OSError):  # a kernel without support
                    memory.madvise(advice)
        self.holder = (ctypes.c_char * self.capacity).from_buffer(memory)
        self.unused = sys.getrefcount(self.holder)

    def is_free(self) -> bool:
        return sys.getrefcount(self.holder) == self.unused

    def view(self, size: int) -> memoryview:
        return memoryview(self.holder).cast("B")[:size]


class DecodeBuffers:
    """The buffers of one process. Thread-safe."""

    def __init__(self) -> None:
        self._buffers: list[_DecodeBuffer] = []
        self._lock = threading.Lock()

    def acquire(self, size: int) -> memoryview:
        """Returns writable memory of this size with arbitrary content. No other caller gets it while the
        view, or a part of it, is referenced."""
        with self._lock:
            free_buffer = self._find_free(size)
            if free_buffer is not None:
                return free_buffer.view(size)
        new_buffer = _DecodeBuffer(size)
        view = new_buffer.view(size)
        with self._lock:
            self._buffers.append(new_buffer)
        return view

    def reserve(self, size: int) -> None:
        """Ensures that there is free memory for a state of about this size."""
        with self._lock:
            if self._find_free(size) is not None:
                return
        new_buffer = _DecodeBuffer(size)
        with self._lock:
            self._buffers.append(new_buffer)

    def _find_free(self, size: int) -> _DecodeBuffer | None:
        """Returns a free buffer that fits. If none fits, removes surplus free ones."""
        free = [buffer for buffer in self._buffers if buffer.is_free()]
        fitting = [buffer for buffer in free if size <= buffer.capacity <= max(size * _MAX_SIZE_RATIO, _PAGE)]
        if fitting:
            return min(fitting, key=lambda buffer: buffer.capacity)
        for buffer in free[: max(len(free) - _MAX_SPARE_BUFFERS + 1, 0)]:
            self._buffers.remove(buffer)
        return None

    @property
    def allocated_bytes(self) -> int:
        with self._lock:
            return sum(buffer.capacity for buffer in self._buffers)

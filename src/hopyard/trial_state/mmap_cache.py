"""Mappings of other processes' slots, kept because making one costs more than copying the state."""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from contextlib import suppress

_MAX_MAPPINGS = 64
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)


class MmapCache:
    """By device and inode. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mappings: OrderedDict[tuple[int, int], tuple[int, mmap.mmap]] = OrderedDict()

    def map_file(self, fd: int) -> mmap.mmap:
        """The whole file, read-only."""
        found = os.fstat(fd)
        key = found.st_dev, found.st_ino
        with self._lock:
            known = self._mappings.get(key)
            if known is not None and len(known[1]) == found.st_size:
                self._mappings.move_to_end(key)
                return known[1]
        made = mmap.mmap(fd, found.st_size, flags=mmap.MAP_SHARED | _POPULATE, prot=mmap.PROT_READ)
        with self._lock:
            self._mappings[key] = os.dup(fd), made
            gone = [one for one, (known_fd, _) in self._mappings.items() if os.fstat(known_fd).st_nlink == 0]
            gone += list(self._mappings)[: max(len(self._mappings) - len(gone) - _MAX_MAPPINGS, 0)]
            for one in gone:
                self._discard(one)
        return made

    def _discard(self, key: tuple[int, int]) -> None:
        fd, memory = self._mappings.pop(key, (-1, None))
        if memory is not None:
            os.close(fd)
            with suppress(BufferError):  # still used by a copy, which releases it
                memory.close()

    def release_deleted(self) -> None:
        """Let go of those whose file is gone: the memory is only freed then."""
        with self._lock:
            for key in [one for one, (fd, _) in self._mappings.items() if os.fstat(fd).st_nlink == 0]:
                self._discard(key)

    def close(self) -> None:
        with self._lock:
            for key in list(self._mappings):
                self._discard(key)

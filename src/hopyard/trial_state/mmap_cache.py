"""Mappings of other processes' slots, cached because a new mapping costs more than a copy of the state."""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from contextlib import suppress

_MAX_MAPPINGS = 64
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)


class MmapCache:
    """Mappings by device and inode. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mappings: OrderedDict[tuple[int, int], tuple[int, mmap.mmap]] = OrderedDict()

    def map_file(self, fd: int) -> mmap.mmap:
        """Maps the whole file, read-only."""
        stat_result = os.fstat(fd)
        key = stat_result.st_dev, stat_result.st_ino
        with self._lock:
            cached = self._mappings.get(key)
            if cached is not None and len(cached[1]) == stat_result.st_size:
                self._mappings.move_to_end(key)
                return cached[1]
        mapping = mmap.mmap(fd, stat_result.st_size, flags=mmap.MAP_SHARED | _POPULATE, prot=mmap.PROT_READ)
        with self._lock:
            self._mappings[key] = os.dup(fd), mapping
            stale = [
                stale_key
                for stale_key, (cached_fd, _) in self._mappings.items()
                if os.fstat(cached_fd).st_nlink == 0
            ]
            stale += list(self._mappings)[: max(len(self._mappings) - len(stale) - _MAX_MAPPINGS, 0)]
            for stale_key in stale:
                self._discard(stale_key)
        return mapping

    def _discard(self, key: tuple[int, int]) -> None:
        fd, memory = self._mappings.pop(key, (-1, None))
        if memory is not None:
            os.close(fd)
            with suppress(BufferError):  # a running copy still uses it, and releases it
                memory.close()

    def release_deleted(self) -> None:
        """Closes the mappings of deleted files: only then the memory is freed."""
        with self._lock:
            for key in [
                cached_key for cached_key, (fd, _) in self._mappings.items() if os.fstat(fd).st_nlink == 0
            ]:
                self._discard(key)

    def close(self) -> None:
        with self._lock:
            for key in list(self._mappings):
                self._discard(key)

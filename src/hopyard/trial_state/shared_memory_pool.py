"""Files in shared memory for states, reused after their state was dropped.

A slot is one file, `slot-<owner>-<number>`; a state is a second name of it, `state-<name>`. Any process can
drop a state by removing that name, and the owner sees from the link count that the slot is free. So memory
that was zeroed and mapped once is written again at the speed of a copy, without communication.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hopyard.private_files import open_file

_PAGE = mmap.PAGESIZE
_MAX_SIZE_RATIO = 2  # a slot is used for states down to its size divided by this
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)


def is_same_file(path: Path, fd: int) -> bool:
    """Returns whether the path is still a name of the open file `fd`."""
    try:
        path_stat, fd_stat = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (path_stat.st_ino, path_stat.st_dev) == (fd_stat.st_ino, fd_stat.st_dev)


class SharedMemorySlot:
    """One of this process's own files. pins: the number of users, besides its state, that prevent
    its reuse."""

    __slots__ = ("_fd", "capacity", "key", "memory", "path", "pins")

    def __init__(self, path: Path, size: int) -> None:
        """Raises OSError (ENOSPC) if there is no space for it; no file remains then."""
        self.path = path
        self.capacity = max(-(-size // _PAGE) * _PAGE, _PAGE)
        self.pins = 0
        self._fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            # otherwise a full disk would kill the process when it writes to the mapping
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, 0, self.capacity)
            else:
                os.ftruncate(self._fd, self.capacity)
            self.memory = mmap.mmap(self._fd, self.capacity, flags=mmap.MAP_SHARED | _POPULATE)
        except BaseException:
            os.close(self._fd)
            path.unlink()
            raise
        stat_result = os.fstat(self._fd)
        self.key = (stat_result.st_dev, stat_result.st_ino)

    def is_free(self) -> bool:
        return not self.pins and os.fstat(self._fd).st_nlink == 1

    def fits(self, size: int) -> bool:
        return size <= self.capacity <= max(size * _MAX_SIZE_RATIO, _PAGE)

    def remove(self) -> None:
        """Removes the slot. A state in it keeps its name."""
        with suppress(FileNotFoundError):
            self.path.unlink()
        self.release()

    def release(self) -> None:
        with suppress(BufferError):  # a running copy still uses it, and releases the mapping
            self.memory.close()
        os.close(self._fd)


class SharedMemoryPool:
    """This process's own slots in one folder. Thread-safe."""

    def __init__(self, folder: Path, owner: str, *, max_spare: int) -> None:
        self._folder, self._owner, self._max_spare = folder, owner, max_spare
        self._lock = threading.Lock()
        self._slots: list[SharedMemorySlot] = []
        self._created_count = 0

    def acquire(self, size: int) -> SharedMemorySlot:
        """Returns a pinned slot. Raises OSError (ENOSPC) if there is no space."""
        with self._lock:
            fitting = [slot for slot in self._slots if slot.fits(size) and slot.is_free()]
            if fitting:
                smallest = min(fitting, key=lambda slot: slot.capacity)
                smallest.pins += 1
                return smallest
            self._created_count += 1
            path = self._folder / f"slot-{self._owner}-{self._created_count}"
        new_slot = SharedMemorySlot(path, size)
        with self._lock:
            new_slot.pins += 1
            self._slots.append(new_slot)
        return new_slot

    def has_free(self, size: int) -> bool:
        with self._lock:
            return any(slot.fits(size) and slot.is_free() for slot in self._slots)

    def unpin(self, slot: SharedMemorySlot) -> None:
        with self._lock:
            slot.pins -= 1

    @contextmanager
    def pin_if_own(self, key: tuple[int, int]) -> Iterator[SharedMemorySlot | None]:
        """Yields the slot of this device and inode if this process owns it. It is not reused while the
        context is open."""
        with self._lock:
            own_slot = next((slot for slot in self._slots if slot.key == key), None)
            if own_slot is not None:
                own_slot.pins += 1
        try:
            yield own_slot
        finally:
            if own_slot is not None:
                self.unpin(own_slot)

    def release_spare(self) -> None:
        """Removes free slots except a few for the next states."""
        with self._lock:
            free = [slot for slot in self._slots if slot.is_free()]
            for slot in free[: max(len(free) - self._max_spare, 0)]:
                self._slots.remove(slot)
                slot.remove()

    @property
    def allocated_bytes(self) -> int:
        with self._lock:
            return sum(slot.capacity for slot in self._slots)

    def close(self) -> None:
        """Releases all slots. A slot with a state stays in the store without an owner."""
        with self._lock:
            for slot in self._slots:
                if slot.is_free():
                    slot.remove()
                else:
                    slot.release()
            self._slots.clear()

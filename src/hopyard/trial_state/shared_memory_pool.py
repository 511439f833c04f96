"""Files in shared memory that states are written to, used again once their state was dropped.

A slot is one file, `slot-<owner>-<number>`; a state is a second name of it, `state-<name>`. Whoever drops the
state removes that name; the owner sees by the number of names that the slot is free. So memory once zeroed
and mapped is written again at the speed of a copy, and nobody needs to be asked.
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
_MAX_SIZE_RATIO = 2  # a slot is used for states down to its size over this
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)


def is_same_file(path: Path, fd: int) -> bool:
    """Whether the path is still a name of the open file `fd`."""
    try:
        named, opened = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (named.st_ino, named.st_dev) == (opened.st_ino, opened.st_dev)


class SharedMemorySlot:
    """One of this process's own files. pins: why it may not be used again now, beside its state."""

    __slots__ = ("_fd", "capacity", "key", "memory", "path", "pins")

    def __init__(self, path: Path, size: int) -> None:
        """Raises OSError (ENOSPC) where there is no room for it; then nothing is left."""
        self.path = path
        self.capacity = max(-(-size // _PAGE) * _PAGE, _PAGE)
        self.pins = 0
        self._fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            # else a full disk ends the process when the mapping is written
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, 0, self.capacity)
            else:
                os.ftruncate(self._fd, self.capacity)
            self.memory = mmap.mmap(self._fd, self.capacity, flags=mmap.MAP_SHARED | _POPULATE)
        except BaseException:
            os.close(self._fd)
            path.unlink()
            raise
        found = os.fstat(self._fd)
        self.key = (found.st_dev, found.st_ino)

    def is_free(self) -> bool:
        return not self.pins and os.fstat(self._fd).st_nlink == 1

    def fits(self, size: int) -> bool:
        return size <= self.capacity <= max(size * _MAX_SIZE_RATIO, _PAGE)

    def remove(self) -> None:
        """A state that is in it keeps its name."""
        with suppress(FileNotFoundError):
            self.path.unlink()
        self.release()

    def release(self) -> None:
        with suppress(BufferError):  # still used by a copy, which releases the mapping
            self.memory.close()
        os.close(self._fd)


class SharedMemoryPool:
    """This process's own, in one folder. May be used from any thread."""

    def __init__(self, folder: Path, owner: str, *, max_spare: int) -> None:
        self._folder, self._owner, self._max_spare = folder, owner, max_spare
        self._lock = threading.Lock()
        self._slots: list[SharedMemorySlot] = []
        self._created_count = 0

    def acquire(self, size: int) -> SharedMemorySlot:
        """A pinned one. Raises OSError (ENOSPC) where there is no room."""
        with self._lock:
            fitting = [slot for slot in self._slots if slot.fits(size) and slot.is_free()]
            if fitting:
                chosen = min(fitting, key=lambda slot: slot.capacity)
                chosen.pins += 1
                return chosen
            self._created_count += 1
            path = self._folder / f"slot-{self._owner}-{self._created_count}"
        made = SharedMemorySlot(path, size)
        with self._lock:
            made.pins += 1
            self._slots.append(made)
        return made

    def has_free(self, size: int) -> bool:
        with self._lock:
            return any(slot.fits(size) and slot.is_free() for slot in self._slots)

    def unpin(self, slot: SharedMemorySlot) -> None:
        with self._lock:
            slot.pins -= 1

    @contextmanager
    def pin_if_own(self, key: tuple[int, int]) -> Iterator[SharedMemorySlot | None]:
        """The slot of this device and inode, where it is of this process, and not used again as long as this
        lasts."""
        with self._lock:
            found = next((slot for slot in self._slots if slot.key == key), None)
            if found is not None:
                found.pins += 1
        try:
            yield found
        finally:
            if found is not None:
                self.unpin(found)

    def release_spare(self) -> None:
        """Give up free ones, but a few for what comes next."""
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
        """Those with a state in it stay on the shelf, without an owner."""
        with self._lock:
            for slot in self._slots:
                if slot.is_free():
                    slot.remove()
                else:
                    slot.release()
            self._slots.clear()

"""The store of encoded states for all processes of an attempt on one host: files in shared memory, by name.

    <memory>/hopyard-<uid>-<name>/   in the system's memory file system, or in a folder on disk if that
                                     is missing or full
        lock               held by every process that uses the folder; a dead attempt's folder is unlocked
        owner-<token>      held by one process, which owns slot-<token>-…
        slot-<token>-<n>   memory, reused
        state-<name>       a second name of the slot that contains the state

A state's bytes never change while it has its name. A reader copies them and then checks that the name still
exists. If it does, the copy is the state.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from hopyard.domain.ids import is_state_name
from hopyard.errors import IntegrityError, NotFound, StorageFull
from hopyard.private_files import open_file
from hopyard.trial_state import attempt_dir, state_format
from hopyard.trial_state.decode_buffers import DecodeBuffers
from hopyard.trial_state.mmap_cache import MmapCache
from hopyard.trial_state.shared_memory_pool import SharedMemoryPool, SharedMemorySlot, is_same_file

log = logging.getLogger("hopyard.trial_state")

SHARED_MEMORY_DIR = Path("/dev/shm")
_MAX_SPARE_SLOTS = 2


class WritableState(Protocol):
    """See `encode.EncodedState`. size: how many bytes `write_into` writes."""

    size: int

    def write_into(self, view: memoryview, /) -> None: ...


class StateStore:
    """name: the same for all processes of the attempt. disk: a folder that they share, for states that do not
    fit into memory.

    Thread-safe. Raises OSError if neither folder can be used.
    """

    def __init__(self, name: str, disk: Path, *, memory: Path = SHARED_MEMORY_DIR) -> None:
        attempt_dir.remove_dead_attempts(memory)
        self._attempt_dirs: list[tuple[attempt_dir.AttemptDir, SharedMemoryPool]] = []
        for parent in (memory, disk):
            try:
                folder = attempt_dir.AttemptDir(parent, name)
            except OSError as error:
                if parent == disk and not self._attempt_dirs:
                    raise
                log.warning("states cannot be stored in %s: %s", parent, error)
                continue
            self._attempt_dirs.append(
                (folder, SharedMemoryPool(folder.path, folder.owner, max_spare=_MAX_SPARE_SLOTS))
            )
        self._decode_buffers, self._mmap_cache = DecodeBuffers(), MmapCache()
        stat_result = self._attempt_dirs[0][0].path.stat()
        self.id = f"{attempt_dir.host_id()}-{stat_result.st_dev:x}-{stat_result.st_ino:x}"

    # -- writing ---------------------------------------------------------------------------------------------

    def put(self, name: str, state: WritableState) -> int:
        """Stores a state and returns its size in bytes. An existing state is not replaced. Raises
        StorageFull."""
        with self.allocate(name, state.size) as view:
            state.write_into(view)
        return state.size

    @contextmanager
    def allocate(self, name: str, size: int) -> Iterator[memoryview]:
        """Yields memory for a state of this size. The state is stored when the block ends without an
        exception."""
        path_name = _file_name(name)
        folder, slots, slot = self._acquire_slot(size)
        try:
            with memoryview(slot.memory) as slot_view, slot_view[:size] as view:
                yield view
            with suppress(FileExistsError):
                os.link(slot.path, folder.path / path_name)
        finally:
            slots.unpin(slot)
            slots.release_spare()

    def reserve(self, size: int) -> None:
        """Prepares memory for a state of about this size, to store and to read: new memory is
        slow to write."""
        with suppress(StorageFull):
            _, slots, slot = self._acquire_slot(size)
            slots.unpin(slot)
            self._decode_buffers.reserve(size)

    def _acquire_slot(self, size: int) -> tuple[attempt_dir.AttemptDir, SharedMemoryPool, SharedMemorySlot]:
        for folder, slots in self._attempt_dirs:
            try:
                if folder.usable_bytes() >= size or slots.has_free(size):
                    return folder, slots, slots.acquire(size)
            except OSError as error:
                log.warning("no space for a state of %d bytes in %s: %s", size, folder.path, error)
        folders = " and ".join(str(folder.path.parent) for folder, _ in self._attempt_dirs)
        hint = "give the host more memory or the disk more space, or run fewer trials at once (`concurrent`)"
        raise StorageFull(f"no space for a state of {size / 1e6:.0f} MB in {folders}", hints=(hint,))

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, name: str) -> memoryview:
        """Returns a copy of the state's bytes for `decode`: writable and not shared. Raises NotFound."""
        with self._open(name) as (fd, path), self._memory(fd) as (memory, _):
            size = _size_of(memory, name)
            copy = self._decode_buffers.acquire(size)
            _copy(copy, memory, size)
            if not is_same_file(path, fd):
                raise NotFound(f"state `{name}` was dropped while it was read")
        return copy

    @contextmanager
    def view(self, name: str) -> Iterator[memoryview]:
        """Yields the state's bytes in place, read-only. A state that this process stored stays unchanged
        until the end, even if it is dropped.

        Raises NotFound, also at the end if another process's state was dropped meanwhile.
        """
        with self._open(name) as (fd, path), self._memory(fd) as (memory, pinned):
            with (
                memoryview(memory) as file_view,
                file_view[: _size_of(memory, name)] as view,
                view.toreadonly() as readonly_view,
            ):
                yield readonly_view
            if not pinned and not is_same_file(path, fd):
                raise NotFound(f"state `{name}` was dropped while it was used")

    @contextmanager
    def _memory(self, fd: int) -> Iterator[tuple[mmap.mmap, bool]]:
        """Yields the mapped file, and whether it is a slot of this process, which is not reused meanwhile."""
        stat_result = os.fstat(fd)
        for _, slots in self._attempt_dirs:
            with slots.pin_if_own((stat_result.st_dev, stat_result.st_ino)) as slot:
                if slot is not None:
                    yield slot.memory, True
                    return
        yield self._mmap_cache.map_file(fd), False

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[int, Path]]:
        path_name = _file_name(name)
        for folder, _ in self._attempt_dirs:
            path = folder.path / path_name
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                yield fd, path
                return
            finally:
                os.close(fd)
        raise NotFound(f"state `{name}` is not stored on this host")

    def has(self, name: str) -> bool:
        path_name = _file_name(name)
        return any((folder.path / path_name).exists() for folder, _ in self._attempt_dirs)

    def list_states(self) -> list[str]:
        """Returns the names of all states, from all processes."""
        names = {
            path.name.removeprefix("state-")
            for folder, _ in self._attempt_dirs
            for path in folder.path.glob("state-*")
        }
        return sorted(names)

    # -- removal and files -----------------------------------------------------------------------------------

    def drop(self, names: Iterable[str]) -> None:
        """Removes states. Missing ones are ignored."""
        for name in names:
            path_name = _file_name(name)
            for folder, _ in self._attempt_dirs:
                with suppress(FileNotFoundError):
                    (folder.path / path_name).unlink()
        self.release_unused()

    def release_unused(self) -> None:
        """Releases memory without a state: of this process, and of processes that have ended."""
        for folder, slots in self._attempt_dirs:
            slots.release_spare()
            folder.remove_stale_slots()
        self._mmap_cache.release_deleted()

    def export_file(self, name: str, path: Path) -> int:
        """Writes the state to a file atomically; returns its size. Raises NotFound, OSError."""
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with self.view(name) as view, open(scratch, "wb", opener=open_file) as file:
                file.write(view)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
            return path.stat().st_size
        finally:
            with suppress(FileNotFoundError):
                scratch.unlink()

    def import_file(self, name: str, path: Path) -> int:
        """Stores a state that was exported; returns its size. Raises OSError, IntegrityError, StorageFull."""
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            with self.allocate(name, size) as view:
                if file.readinto(view) != size:
                    raise IntegrityError(f"{path} became shorter while it was read")
                _size_of(view, name)
        return size

    @property
    def allocated_bytes(self) -> int:
        """The memory and disk space of this process's slots."""
        return sum(slots.allocated_bytes for _, slots in self._attempt_dirs)

    def close(self) -> None:
        """Closes the store. States stay for other processes; the last one to close removes them."""
        self._mmap_cache.close()
        for folder, slots in self._attempt_dirs:
            slots.close()
            folder.close()


def _file_name(name: str) -> str:
    if not is_state_name(name):
        raise NotFound(f"`{name[:80]}` is not the name of a state")
    return f"state-{name}"


def _size_of(memory: mmap.mmap | memoryview, name: str) -> int:
    """Returns the size in the state's own header. Raises IntegrityError."""
    with memoryview(memory) as view:
        if len(view) >= state_format.START.size:
            magic, payload_at, size = state_format.START.unpack(view[: state_format.START.size])
            if magic == state_format.MAGIC and payload_at <= size <= len(view):
                return int(size)
    raise IntegrityError(f"the stored state `{name}` is incomplete")


def _copy(target: memoryview, memory: mmap.mmap, size: int) -> None:
    """Copies in one call that releases the GIL; a memoryview assignment would hold it."""
    import numpy

    numpy.copyto(numpy.frombuffer(target, numpy.uint8), numpy.frombuffer(memory, numpy.uint8, count=size))

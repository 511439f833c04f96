"""Reserves disk space, and releases it when a full disk would block the stop or removal of runs.

The reserve is a folder of small files whose blocks are allocated. A write that must succeed on a full disk
removes one file and retries. The files are created again once the disk has room. There is one reserve per
file system, because a home's database, streams and attempts may be on different ones.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from hopyard.errors import StorageFull, is_disk_full
from hopyard.private_files import make_folder, open_file

T = TypeVar("T")

RESERVE_FOLDER = ".reserve"
# many small files: a script that still writes may use the space that was released for another
DEFAULT_SLICES, DEFAULT_SLICE_BYTES = 16, 1024 * 1024
MIN_FREE_SLICES = 8  # as a multiple of the missing slices: the reserve never fills a disk
REFILL_INTERVAL_S = 5.0
log = logging.getLogger("hopyard.stores")


class DiskReserve:
    """The reserve of the file system of `root`. Thread-safe."""

    def __init__(
        self, root: Path, *, slices: int = DEFAULT_SLICES, slice_bytes: int = DEFAULT_SLICE_BYTES
    ) -> None:
        self._folder, self._slices, self._slice_bytes = root / RESERVE_FOLDER, slices, slice_bytes
        self._lock = threading.Lock()

    def fill(self) -> bool:
        """Creates missing slices if the disk has plenty of room. Returns whether the reserve is complete."""
        with self._lock:
            try:
                missing = [path for path in self._paths() if not path.exists()]
                if not missing:
                    return True
                if _free_bytes(self._folder.parent) < MIN_FREE_SLICES * len(missing) * self._slice_bytes:
                    return False
                make_folder(self._folder)
                for path in missing:
                    _allocate_file(path, self._slice_bytes)
            except OSError as error:
                log.warning("no disk space can be reserved in %s: %s", self._folder, error.strerror or error)
                return False
            return True

    def release_slice(self) -> bool:
        """Removes one file. Returns False if none is left."""
        with self._lock:
            for path in reversed(self._paths()):
                with suppress(OSError):
                    path.unlink()
                    return True
        return False

    def release_until_writable(self) -> None:
        """Removes files until the disk has room for one of them. Does nothing if none is left."""
        with suppress(OSError):
            while _free_bytes(self._folder.parent) < self._slice_bytes and self.release_slice():
                pass

    def _paths(self) -> list[Path]:
        return [self._folder / f"{number:02}" for number in range(self._slices)]


class DiskReserves:
    """The reserves of all file systems of `folders`, which must exist."""

    def __init__(
        self, folders: Iterable[Path], *, slices: int = DEFAULT_SLICES, slice_bytes: int = DEFAULT_SLICE_BYTES
    ) -> None:
        self._by_device: dict[int, DiskReserve] = {}
        self._release_event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        for folder in folders:
            self._by_device.setdefault(
                folder.stat().st_dev, DiskReserve(folder, slices=slices, slice_bytes=slice_bytes)
            )

    def fill(self) -> bool:
        """Fills all reserves; returns whether all are complete."""
        results = [reserve.fill() for reserve in self._by_device.values()]
        return all(results)

    def release_until_writable(self) -> None:
        """See `DiskReserve.release_until_writable`."""
        for reserve in self._by_device.values():
            reserve.release_until_writable()

    def release_slice(self, folder: Path) -> bool:
        """Releases one slice on the file system of `folder`. Returns False if none is left. Thread-safe."""
        try:
            reserve = self._by_device.get(folder.stat().st_dev)
        except OSError:
            return False
        if reserve is None or not reserve.release_slice():
            return False
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._release_event.set)
        return True

    def retry_with_reserve(self, folder: Path, work: Callable[[], T]) -> T:
        """Returns the result of `work`. Retries it with more and more of the reserve of `folder` released
        while the disk is full. Raises its error once nothing is left."""
        while True:
            try:
                return work()
            except (OSError, StorageFull) as error:
                if not is_disk_full(error) or not self.release_slice(folder):
                    raise

    async def run(self) -> None:
        """Refills released slices as soon as there is room, until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                if await asyncio.to_thread(self.fill):
                    await self._release_event.wait()
                    self._release_event.clear()
                await asyncio.sleep(REFILL_INTERVAL_S)  # the writer that needed the space comes first
        finally:
            self._loop = None


def _free_bytes(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _allocate_file(path: Path, size: int) -> None:
    """Creates a file with allocated blocks, or none."""
    descriptor = open_file(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)

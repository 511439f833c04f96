"""Disk space set aside while there is some, and given up when a full disk would keep runs from being stopped
or removed.

The reserve is a folder of small files whose blocks are allocated. A write that must succeed on a full disk
removes one file and tries again; the files are made again once the disk has room. One reserve per file
system: a home's database, streams and attempts may lie on different ones.
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
# many small ones: a script that still writes takes what was freed for another
DEFAULT_SLICES, DEFAULT_SLICE_BYTES = 16, 1024 * 1024
MIN_FREE_SLICES = 8  # times what is missing: the reserve is never what fills a disk
REFILL_INTERVAL_S = 5.0
log = logging.getLogger("hopyard.stores")


class DiskReserve:
    """The reserve of the file system that holds `root`. Threads may share it."""

    def __init__(
        self, root: Path, *, slices: int = DEFAULT_SLICES, slice_bytes: int = DEFAULT_SLICE_BYTES
    ) -> None:
        self._folder, self._slices, self._slice_bytes = root / RESERVE_FOLDER, slices, slice_bytes
        self._lock = threading.Lock()

    def fill(self) -> bool:
        """Make what is missing, where the disk has plenty of room. Whether the reserve is whole."""
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
            except OSError as failed:
                log.warning("no disk space is set aside in %s: %s", self._folder, failed.strerror or failed)
                return False
            return True

    def release_slice(self) -> bool:
        """Give up one file. False when there is none left."""
        with self._lock:
            for path in reversed(self._paths()):
                with suppress(OSError):
                    path.unlink()
                    return True
        return False

    def release_until_writable(self) -> None:
        """Give up files until the disk has as much room as one of them. Without one, nothing happens."""
        with suppress(OSError):
            while _free_bytes(self._folder.parent) < self._slice_bytes and self.release_slice():
                pass

    def _paths(self) -> list[Path]:
        return [self._folder / f"{number:02}" for number in range(self._slices)]


class DiskReserves:
    """The reserves of all file systems that hold `folders`, of which each must exist."""

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
        """Whether all of them are whole."""
        whole = [reserve.fill() for reserve in self._by_device.values()]
        return all(whole)

    def release_until_writable(self) -> None:
        """See `DiskReserve.release_until_writable`."""
        for reserve in self._by_device.values():
            reserve.release_until_writable()

    def release_slice(self, folder: Path) -> bool:
        """Give up a piece on the file system of `folder`. False when there is none (left).
        Any thread may call it."""
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
        """The result of `work`, which is repeated with more and more of the reserve of `folder` as long as
        the disk is full. Raises what it raises when all is given up."""
        while True:
            try:
                return work()
            except (OSError, StorageFull) as failed:
                if not is_disk_full(failed) or not self.release_slice(folder):
                    raise

    async def run(self) -> None:
        """Make again what was given up as soon as there is room, until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                if await asyncio.to_thread(self.fill):
                    await self._release_event.wait()
                    self._release_event.clear()
                await asyncio.sleep(REFILL_INTERVAL_S)  # that which it was given up for comes first
        finally:
            self._loop = None


def _free_bytes(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _allocate_file(path: Path, size: int) -> None:
    """Make a file whose blocks belong to it, or none."""
    descriptor = open_file(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)

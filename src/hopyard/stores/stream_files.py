"""Replicas' streams as files: `<root>/<run>/<attempt>/<rank>/<name>`.

The length of a stream is the size of its file. No second record exists that could differ after a crash. All
work runs in threads of its own, so a slow disk blocks neither the event loop nor other users of threads.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from hopyard.domain.ids import AttemptId, RunId, check_name, is_name, split_attempt
from hopyard.errors import SpecError, StorageFull, is_disk_full
from hopyard.interfaces.streams import Segment, StreamKey
from hopyard.private_files import make_folder, open_file

T = TypeVar("T")


class _OpenStream:
    """A stream's descriptor. It is -1 once it was closed to free descriptors; the next user opens it
    again."""

    __slots__ = ("descriptor", "lock")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.lock = threading.Lock()


class FolderStreams:
    """The Streams interface on a local folder. Keeps at most `max_open` descriptors open between calls."""

    def __init__(self, root: Path, *, max_open: int = 256, threads: int = 4) -> None:
        self._root = root
        self._max_open = max_open
        self._open_streams: OrderedDict[StreamKey, _OpenStream] = OrderedDict()
        self._lock = threading.Lock()  # guards `_open_streams`; never held during I/O of data
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="streams")

    async def append(self, attempt: AttemptId, rank: int, segments: Sequence[Segment], /) -> Sequence[int]:
        return await self._run_in_thread(
            lambda: [
                self._append(StreamKey(attempt, rank, segment.stream), segment.offset, segment.data)
                for segment in segments
            ]
        )

    async def read(self, key: StreamKey, offset: int, limit: int, /) -> bytes:
        return await self._run_in_thread(lambda: self._read(key, offset, limit))

    async def lengths(self, attempt: AttemptId, rank: int, /) -> Mapping[str, int]:
        return await self._run_in_thread(lambda: self._lengths(attempt, rank))

    async def list(self, run: RunId, /) -> Sequence[StreamKey]:
        return await self._run_in_thread(lambda: self._list(run))

    async def lengths_of_runs(self, runs: Sequence[RunId], /) -> Mapping[RunId, Mapping[StreamKey, int]]:
        return await self._run_in_thread(lambda: {run: self._lengths_of_run(run) for run in runs})

    async def sync(self, attempt: AttemptId, rank: int, /) -> None:
        await self._run_in_thread(lambda: self._sync(attempt, rank))

    async def delete(self, run: RunId, /) -> None:
        await self._run_in_thread(lambda: self._delete(run))

    async def list_runs(self) -> Sequence[RunId]:
        return await self._run_in_thread(self._runs)

    async def close(self) -> None:
        """Closes all files. Afterwards, only a new FolderStreams can use the streams."""
        await self._run_in_thread(self._close_all)
        self._threads.shutdown()

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    # -- in threads ------------------------------------------------------------------------------------------

    def _append(self, key: StreamKey, offset: int, data: bytes | memoryview) -> int:
        if offset < 0:
            raise SpecError(f"a stream has no offset {offset}")
        stream = self._acquire_stream(key, create=offset == 0 and bool(data))
        if stream is None:
            return 0
        try:
            length = os.fstat(stream.descriptor).st_size
            if offset > length or offset + len(data) <= length:
                return length
            _write_all(stream.descriptor, memoryview(data)[length - offset :], length, key)
            return offset + len(data)
        finally:
            stream.lock.release()

    def _read(self, key: StreamKey, offset: int, limit: int) -> bytes:
        if offset < 0 or limit <= 0:
            return b""
        stream = self._acquire_stream(key, create=False)
        if stream is None:
            return b""
        try:
            return os.pread(stream.descriptor, limit, offset)
        finally:
            stream.lock.release()

    def _lengths(self, attempt: AttemptId, rank: int) -> dict[str, int]:
        try:
            with os.scandir(self._folder(attempt, rank)) as entries:
                return {entry.name: entry.stat().st_size for entry in entries}
        except FileNotFoundError:
            return {}

    def _lengths_of_run(self, run: RunId) -> dict[StreamKey, int]:
        return {
            StreamKey(AttemptId(attempt.name), int(rank.name), entry.name): entry.stat().st_size
            for attempt in _scan_folder(self._run_folder(run))
            for rank in _scan_folder(attempt.path)
            for entry in _scan_folder(rank.path)
        }

    def _list(self, run: RunId) -> Sequence[StreamKey]:
        top = self._run_folder(run)
        return sorted(
            StreamKey(AttemptId(path.parent.parent.name), int(path.parent.name), path.name)
            for path in top.glob("*/*/*")
        )

    def _sync(self, attempt: AttemptId, rank: int) -> None:
        folder = self._folder(attempt, rank)
        try:
            paths = tuple(folder.iterdir())
        except FileNotFoundError:
            return
        for path in (*paths, folder, folder.parent, folder.parent.parent, self._root):
            _fsync_path(path)

    def _runs(self) -> Sequence[RunId]:
        try:
            return sorted(RunId(folder.name) for folder in self._root.iterdir() if is_name(folder.name))
        except FileNotFoundError:
            return ()

    def _delete(self, run: RunId) -> None:
        if not is_name(run):
            return  # no stream exists for an id that is no legal folder name
        top = self._run_folder(run)
        with self._lock:
            keys = [key for key in self._open_streams if split_attempt(key.attempt)[0] == run]
            streams = [self._open_streams.pop(key) for key in keys]
        for stream in streams:
            with stream.lock:
                _close_stream(stream)
        with suppress(FileNotFoundError):
            shutil.rmtree(top)

    def _close_all(self) -> None:
        with self._lock:
            streams = list(self._open_streams.values())
            self._open_streams.clear()
        for stream in streams:
            with stream.lock:
                _close_stream(stream)

    # -- descriptors -----------------------------------------------------------------------------------------

    def _acquire_stream(self, key: StreamKey, *, create: bool) -> _OpenStream | None:
        """Returns the open stream with its lock held; None if it does not exist and `create` is not set."""
        while True:
            with self._lock:
                stream = self._open_streams.get(key)
                if stream is not None:
                    self._open_streams.move_to_end(key)
            if stream is None:
                descriptor = self._open_file(key, create=create)
                if descriptor is None:
                    return None
                new_stream = _OpenStream(descriptor)
                with self._lock:
                    stream = self._open_streams.setdefault(key, new_stream)
                if stream is not new_stream:  # another thread was faster
                    os.close(descriptor)
                self._close_oldest()
            stream.lock.acquire()
            if stream.descriptor >= 0:
                return stream
            stream.lock.release()

    def _open_file(self, key: StreamKey, *, create: bool) -> int | None:
        folder = self._folder(key.attempt, key.rank)
        path = folder / check_name(key.name, subject="stream")
        try:
            if create:
                make_folder(folder)
            return open_file(path, os.O_RDWR | (os.O_CREAT if create else 0))
        except FileNotFoundError:
            return None
        except OSError as error:
            if is_disk_full(error):
                raise _disk_full_error(key) from error
            raise

    def _close_oldest(self) -> None:
        with self._lock:
            if len(self._open_streams) <= self._max_open:
                return
            for key, stream in list(self._open_streams.items()):
                if len(self._open_streams) <= self._max_open:
                    return
                if stream.lock.acquire(blocking=False):  # skips a stream in use
                    del self._open_streams[key]
                    _close_stream(stream)
                    stream.lock.release()

    # -- paths -----------------------------------------------------------------------------------------------

    def _run_folder(self, run: RunId) -> Path:
        return self._root / check_name(run, subject="run")

    def _folder(self, attempt: AttemptId, rank: int) -> Path:
        run, number = split_attempt(attempt)
        return self._run_folder(run) / f"{run}.{number}" / str(int(rank))


def _write_all(descriptor: int, data: memoryview, at: int, key: StreamKey) -> None:
    """Writes all of `data` at `at`, which is the end of the file, or nothing."""
    written = 0
    try:
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], at + written)
    except OSError as error:
        os.ftruncate(descriptor, at)
        if is_disk_full(error):
            raise _disk_full_error(key) from error
        raise


def _disk_full_error(key: StreamKey) -> StorageFull:
    return StorageFull(
        f"no space left on the server for the stream `{key.name}` of {key.attempt}",
        hints=("free some space: `hop rm RUN` deletes a run with its streams",),
    )


def _scan_folder(path: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _fsync_path(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # deleted meanwhile
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _close_stream(stream: _OpenStream) -> None:
    if stream.descriptor >= 0:
        os.close(stream.descriptor)
        stream.descriptor = -1

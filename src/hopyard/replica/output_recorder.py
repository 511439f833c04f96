"""Records the order in which a script's stdout and stderr arrived, as an index of both streams.

The script writes straight into the two files, so the order is known only from outside. The kernel queues a
notification for each write (inotify), in their order. A thread reads the queue and compares it with the sizes
of the files. Without inotify, the sizes alone give a coarser order.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from hopyard.domain.stream_limits import OUTPUT_INDEX_STREAM, OUTPUT_STREAMS
from hopyard.private_files import open_below
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log
from hopyard.sdk.output_limit import OutputLimit

_IN_MODIFY = 0x02
_EVENT = struct.Struct("iIII")
_MAX_LINE_SCAN_BYTES = 1024 * 1024
_MAX_OUTPUT_LINE_BYTES = 65_536  # of a limited stream, see `OutputLimit`
# pauses after a record: of one stream alone, of both, and without inotify
_PAUSE_S, _MIXED_PAUSE_S, _POLL_S = 0.02, 0.005, 0.05
_MAX_SIZE_READS, _WRITE_S = 10, 0.001  # of a script that writes all the time
# one stream alone gets an entry in this interval; a long index is recorded more coarsely
_ENTRY_INTERVAL_S = 0.25
_COARSE_INDEX_BYTES, _COARSE_INTERVAL_S = 4 * 1024**2, 2.0
_COARSEST_INDEX_BYTES, _COARSEST_INTERVAL_S = 8 * 1024**2, 30.0


class OutputRecorder:
    """Writes the index of one replica. limit_bytes: of each output stream, 0 without a limit; the index ends
    where a stream is cut."""

    def __init__(self, folder: ReplicaDir, limit_bytes: int) -> None:
        self._folder = folder
        self._max_size = max(0, limit_bytes - _MAX_OUTPUT_LINE_BYTES) if limit_bytes else None
        self._descriptors: list[int] = []
        self._sizes = [0, 0]
        self._order: list[int] = []  # streams in the order of writes that are not recorded yet
        self._events = -1
        self._watches: list[int] = []
        self._pending: tuple[float, int] | None = None  # time and stream of the newest part, not written yet
        self._index, self._index_bytes, self._written_at = -1, 0, 0.0
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)

    def start(self) -> None:
        """Starts recording. The files of both streams must exist, and no process may be forked later."""
        try:
            for name in OUTPUT_STREAMS:
                self._descriptors.append(open_below(self._folder.root, f"streams/{name}", os.O_RDONLY))
            self._index = open_below(
                self._folder.root, f"streams/{OUTPUT_INDEX_STREAM}", os.O_WRONLY | os.O_APPEND | os.O_CREAT
            )
        except OSError as error:
            log(f"the order of the output is not recorded: {error}")
            return
        self._events, self._watches = _watch_files(self._descriptors)
        self._thread.start()

    def record(self) -> None:
        """Writes what has arrived so far."""
        with self._lock, suppress(OSError):
            if self._index >= 0:
                self._record(time.time())

    def close(self) -> None:
        """Records the rest, when the script has ended."""
        if self._index < 0:
            return
        self._closed.set()
        with self._lock, suppress(OSError):
            self._record(time.time())
            self._write_pending()
            for descriptor in (self._index, self._events, *self._descriptors):
                if descriptor >= 0:
                    os.close(descriptor)
            self._index = self._events = -1

    def _run(self) -> None:
        while not self._closed.is_set():
            mixed = False
            with suppress(OSError, ValueError):
                if self._events >= 0 and not select.select([self._events], [], [], 0.5)[0]:
                    continue
                with self._lock:
                    if self._index < 0:
                        return
                    mixed = self._record(time.time())
            self._closed.wait(_POLL_S if self._events < 0 else _MIXED_PAUSE_S if mixed else _PAUSE_S)

    def _record(self, now: float) -> bool:
        """Returns whether both streams have grown."""
        interval_s = (
            _COARSEST_INTERVAL_S
            if self._index_bytes > _COARSEST_INDEX_BYTES
            else _COARSE_INTERVAL_S
            if self._index_bytes > _COARSE_INDEX_BYTES
            else 0.0
        )
        if now - self._written_at < interval_s and not self._closed.is_set():
            return False
        self._read_events()
        for reads_left in reversed(range(_MAX_SIZE_READS)):
            certain = len(self._order)
            sizes = [os.fstat(descriptor).st_size for descriptor in self._descriptors]
            self._closed.wait(_WRITE_S)  # a write changes the size before it is reported
            if not self._read_events(certain):
                break  # the sizes are those after exactly these writes
            is_same = 0 < certain < len(self._order) and self._order[certain - 1] == self._order[certain]
            if reads_left and is_same:
                del self._order[certain]
        if self._max_size is not None:
            sizes = [min(size, self._max_size) for size in sizes]
        if interval_s:
            self._order.clear()
        grown = [stream for stream in (0, 1) if sizes[stream] > self._sizes[stream]]
        order = self._order + [stream for stream in grown if stream not in self._order]
        ends = {stream: self._part_ends(stream, sizes[stream], order.count(stream)) for stream in grown}
        used = certain
        for number, stream in enumerate(order):
            if stream in ends and self._add_part(now, stream, ends[stream].pop(0)):
                used = max(used, number + 1)
        self._order = self._order[used:]
        return len(grown) > 1

    def _read_events(self, begin: int = 0) -> bool:
        """Adds the streams in the order of their writes; from `begin` on, no neighbours are equal. Returns
        whether there were any writes."""
        is_written = False
        while self._events >= 0:
            try:
                data = os.read(self._events, 64 * 1024)
            except BlockingIOError:
                break
            is_written = True
            for watch, _, _, _ in _EVENT.iter_unpack(data):
                if watch in self._watches:
                    stream = self._watches.index(watch)
                    if len(self._order) <= begin or self._order[-1] != stream:
                        self._order.append(stream)
        return is_written

    def _part_ends(self, stream: int, size: int, count: int) -> list[int]:
        """Divides the new bytes of a stream into this many parts: a line each, and the rest in the last."""
        begin = self._sizes[stream]
        if count == 1:
            return [size]
        data = os.pread(self._descriptors[stream], min(size - begin, _MAX_LINE_SCAN_BYTES), begin)
        ends: list[int] = []
        at = 0
        while len(ends) < count - 1:
            newline = data.find(b"\n", at)
            if newline < 0:
                break
            at = newline + 1
            ends.append(begin + at)
        return [*ends, *[size] * (count - len(ends))]

    def _add_part(self, now: float, stream: int, end: int) -> bool:
        """Returns whether the part has any bytes."""
        if end <= self._sizes[stream]:
            return False
        if self._pending is not None and (
            self._pending[1] != stream or now - self._pending[0] >= _ENTRY_INTERVAL_S
        ):
            self._write_pending()
        if self._pending is None:
            self._pending = now, stream
        self._sizes[stream] = end
        return True

    def _write_pending(self) -> None:
        if self._pending is None:
            return
        (at, stream), self._pending = self._pending, None
        entry = b"%.3f %d %d\n" % (at, stream, self._sizes[stream])
        os.write(self._index, entry)
        self._index_bytes, self._written_at = self._index_bytes + len(entry), at


def _watch_files(descriptors: Sequence[int]) -> tuple[int, list[int]]:
    """Returns a descriptor that becomes readable after a write, and the number of each file's watch; -1 if
    the kernel has no more watches."""
    libc = ctypes.CDLL(None, use_errno=True)
    events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if events < 0:
        return -1, []
    watches = [
        libc.inotify_add_watch(events, b"/proc/self/fd/%d" % descriptor, _IN_MODIFY)
        for descriptor in descriptors
    ]
    if min(watches) < 0:
        os.close(events)
        return -1, []
    return events, watches


def dropped_output(folder: ReplicaDir, limit: OutputLimit, rank: int) -> list[str]:
    """Returns a sentence about each output stream of which a part was dropped."""
    sentences = []
    for name in OUTPUT_STREAMS:
        with suppress(OSError):
            with os.fdopen(folder.open_stream(name), "rb") as file:
                dropped = limit.dropped_bytes(name, file.fileno(), os.fstat(file.fileno()).st_size)
            if dropped:
                sentences.append(limit.explain(name, rank, dropped))
    return sentences

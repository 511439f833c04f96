"""The size limit of a run's reports: its metrics, TensorBoard scalars, events and resource usage samples.

Up to the limit a stream is sent as it grows. It is cut at the end of a record. Records after the limit are
read on the node. The newest value of each metric (of each kind of event) is written to a summary file of the
replica, which is sent instead. That happens at growing intervals, and at the end. Disk blocks that were read
are released. The script does not notice.
"""

from __future__ import annotations

import errno
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from hopyard.backports import dataclass
from hopyard.config.units import format_memory
from hopyard.domain.metric_records import (
    MAX_RECORD_BYTES,
    NO_STEP,
    POINT,
    complete_bytes,
    pack_definition,
    pack_point,
    read_point_blocks,
)
from hopyard.domain.run import UNSTORED, RunEventKind
from hopyard.errors import IntegrityError
from hopyard.private_files import make_folder, open_below, open_no_follow
from hopyard.sdk.punch_hole import BLOCK_BYTES, punch_hole

_READ_CHUNK_BYTES = 4 * 1024**2
_CHUNKS_PER_POLL = 4
# the interval between two stored values: this share of the time since the limit was passed
_FIRST_WRITE_INTERVAL_S, _WRITE_INTERVAL_GROWTH = 2.0, 0.02
_MAX_NAMES = 10_000  # metrics of one stream that have stored values
_MAX_LINES = 1_000  # events that are reported once per run
_UNLIMITED_KINDS = frozenset({UNSTORED, RunEventKind.TIME_LIMIT, "note", "environment"})
_MERGED_KINDS = frozenset({"params", "summary"})


class StreamSummary(Protocol):
    """The newest values of a stream's records."""

    def feed(self, data: bytes) -> int:
        """Reads the whole records at the beginning of `data` and returns their size in bytes. Raises
        IntegrityError for damaged data.
        """

    def clear(self) -> None:
        """Discards the pending values: the records read so far are sent as they are."""

    def drain(self, max_bytes: int) -> bytes:
        """Returns the values that are new since the last call, as records of at most `max_bytes` bytes in
        total.
        """


class LatestPoints:
    """The newest point of each metric. It must read a stream from its beginning, since it counts the points
    without a step.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._latest: dict[int, tuple[int, float, float]] = {}
        self._updated: set[int] = set()
        self._definitions: set[int] = set()

    def feed(self, data: bytes) -> int:
        used = 0
        for part in read_point_blocks(data, self._names):
            if isinstance(part, int):
                used = part
            else:
                self._update(part)
        for series in list(self._names)[_MAX_NAMES:]:
            del self._names[series]
        return used

    def _update(self, points: Iterator[tuple[int, int, int, float, float]]) -> None:
        newest, updated, names = self._latest, self._updated, self._names
        for _, series, step, time, value in points:
            if series in names:
                previous = newest.get(series)
                newest[series] = (
                    step if step != NO_STEP else (previous[0] + 1 if previous else 0),
                    time,
                    value,
                )
                updated.add(series)

    def clear(self) -> None:
        self._updated.clear()

    def drain(self, max_bytes: int) -> bytes:
        records: list[bytes] = []
        for series in [series for series in self._names if series in self._updated]:
            record = b"" if series in self._definitions else pack_definition(self._names[series])
            record += pack_point(POINT, series, *self._latest[series])
            max_bytes -= len(record)
            if max_bytes < 0:
                break
            records.append(record)
            self._updated.discard(series)
            self._definitions.add(series)
        return b"".join(records)


class LatestLines:
    """The newest JSON line of each kind. Values of params and summary are merged; events that are reported
    once per run are all kept.
    """

    def __init__(self) -> None:
        self._emit_once: list[bytes] = []
        self._latest: dict[str, dict[str, Any]] = {}
        self._merged: dict[str, dict[str, Any]] = {}
        self._emitted = 0

    def feed(self, data: bytes) -> int:
        used = data.rfind(b"\n") + 1
        if not used and len(data) == _READ_CHUNK_BYTES:
            return len(data)  # readers reject a line of that length
        for line in data[:used].splitlines():
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                self._apply(event, line)
        return used

    def _apply(self, event: dict[str, Any], line: bytes) -> None:
        kind, values = str(event.get("kind", ""))[:64], event.get("values")
        if kind in _UNLIMITED_KINDS:
            self._emitted += 1
            if self._emitted <= _MAX_LINES:
                self._emit_once.append(line + b"\n")
        elif len(self._latest) < _MAX_LINES or kind in self._latest:
            if kind in _MERGED_KINDS and isinstance(values, dict):
                merged = self._merged.setdefault(kind, {})
                merged |= {
                    name: value
                    for name, value in values.items()
                    if name in merged or len(merged) < _MAX_NAMES
                }
                event = {**event, "values": merged}
            self._latest[kind] = event

    def clear(self) -> None:
        self._emit_once, self._latest, self._merged = [], {}, {}

    def drain(self, max_bytes: int) -> bytes:
        records: list[bytes] = []
        self._emit_once = _drain_lines(self._emit_once, records, max_bytes)
        max_bytes -= sum(map(len, records))
        for kind, event in list(self._latest.items()):
            line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
            if len(line) <= max_bytes:
                records.append(line)
                max_bytes -= len(line)
                del self._latest[kind]
        return b"".join(records)


def _drain_lines(lines: list[bytes], target: list[bytes], max_bytes: int) -> list[bytes]:
    """Moves the lines that fit into `target` and returns the rest."""
    for index, line in enumerate(lines):
        max_bytes -= len(line)
        if max_bytes < 0:
            return lines[index:]
        target.append(line)
    return []


_SUMMARY_TYPES: Mapping[str, type[LatestPoints | LatestLines]] = {
    "metrics": LatestPoints,
    "tensorboard": LatestPoints,
    "events": LatestLines,
    "system": LatestLines,
}


@dataclass(slots=True)
class _LimitedStream:
    """One stream that passed its limit.

    limit_offset: how many bytes of its file the server gets. read_offset: how far the file was read.
    summary_descriptor: the summary file that is sent instead of the rest; summary_bytes is its size.
    pending_bytes: summary data that a full disk rejected. written_segments: pairs of read_offset and
    summary_bytes, one for each write of the summary.
    """

    limit_offset: int
    summary_descriptor: int
    summary: StreamSummary
    summary_bytes: int = 0
    read_offset: int = 0
    released_to: int = 0
    started_at: float = 0.0
    write_at: float = 0.0
    is_corrupt: bool = False
    pending_bytes: bytes = b""
    written_segments: list[tuple[int, int]] = field(default_factory=list)


class ReportLimit:
    """Limits all report streams of a replica.

    limit_bytes: the limit of each stream; 0 means no limit. folder: holds the summary files. log: receives
    warnings. Only `server_offset` may be called from another thread. A study's journal is not limited: the
    next driver reads all of it.
    """

    def __init__(
        self, limit_bytes: int, folder: Path, *, log: Callable[[str], None] = lambda _: None
    ) -> None:
        self.limit_bytes, self._folder, self._log = limit_bytes, folder, log
        self._limited: dict[str, _LimitedStream] = {}
        self._head_bytes: dict[str, int] = {}  # of streams without a place for a summary file

    def covers(self, name: str) -> bool:
        """Returns whether this stream has a limit."""
        return bool(self.limit_bytes) and name in _SUMMARY_TYPES

    def applies(self, name: str, size: int) -> bool:
        """Returns whether this stream, with a file of `size` bytes, is over the limit and is no longer sent
        as it is.
        """
        return self.covers(name) and (size > self.limit_bytes or name in self._limited)

    def update(
        self, name: str, path: str, descriptor: int, size: int, *, acknowledged: int, now: float, ended: bool
    ) -> int:
        """Reads the new part of a stream that `applies`, and returns the size that the server's copy should
        have.

        acknowledged: how many bytes the server has. Raises OSError if the summary cannot be written; no data
        is lost then, and `readable_bytes` is the size to send.
        """
        limited = self._limited.get(name)
        if limited is None:
            limited = self._limited[name] = self._start_limiting(name, descriptor, size, acknowledged, now)
        chunks = 0
        while limited.read_offset < size and (ended or chunks < _CHUNKS_PER_POLL):
            chunks += 1
            if not self._read(limited, descriptor, size):
                break
        if now >= limited.write_at or ended:
            self._write_summary(limited, ended=ended)
            limited.write_at = now + max(
                _FIRST_WRITE_INTERVAL_S, _WRITE_INTERVAL_GROWTH * (now - limited.started_at)
            )
        if (
            not ended
            and limited.read_offset - max(limited.released_to, limited.limit_offset) >= 16 * BLOCK_BYTES
        ):
            # tried once: if the file system does not support it, the file keeps its space until the end
            end = limited.read_offset
            released_to, limited.released_to = max(limited.released_to, limited.limit_offset), end
            try:
                limited.released_to = punch_hole(path, released_to, end)
            except OSError as error:
                self._log(f"{name} keeps its disk space until the end: {error.strerror}")
        return limited.limit_offset + limited.summary_bytes

    def readable_bytes(self, name: str, descriptor: int) -> int:
        """Returns the size of the server's copy after `update` has failed: the part below the limit, and the
        values that were written before. Raises OSError."""
        limited = self._limited.get(name)
        if limited is not None:
            return limited.limit_offset + limited.summary_bytes
        if name not in self._head_bytes:
            self._head_bytes[name], _ = self._limit_offset(descriptor, _SUMMARY_TYPES[name]())
        return self._head_bytes[name]

    def read(self, name: str, descriptor: int, offset: int, count: int) -> bytes:
        """Returns at most `count` bytes of the server's copy of a stream that has a limit, from `offset`.

        A file that grew over the limit since the last `update` is not read further before the next one.
        """
        limited = self._limited.get(name)
        if limited is None:
            size = os.fstat(descriptor).st_size
            end = size if size <= self.limit_bytes else self._head_bytes.get(name, 0)
            return os.pread(descriptor, max(0, min(count, end - offset)), offset)
        if offset < limited.limit_offset:
            return os.pread(descriptor, min(count, limited.limit_offset - offset), offset)
        return os.pread(
            limited.summary_descriptor,
            max(0, min(count, limited.summary_bytes - (offset - limited.limit_offset))),
            offset - limited.limit_offset,
        )

    def server_offset(self, name: str, offset: int) -> int:
        """Returns the size of the server's copy of a stream when its file is cut at `offset`."""
        limited = self._limited.get(name)
        if limited is None or offset <= limited.limit_offset:
            return offset
        segments = list(limited.written_segments)
        index = bisect_right(segments, offset, key=lambda segment: segment[0])
        return limited.limit_offset + (segments[index - 1][1] if index else 0)

    def explain(self, name: str, rank: int) -> str:
        return (
            f"{name} of replica {rank} passed the limit of {format_memory(self.limit_bytes)}: of what "
            "follows only the newest values are kept, now and then (`hop run --max-metrics`, at most "
            f"`runs: {{max_metrics: …}}` in config.yaml)"
        )

    def _start_limiting(
        self, name: str, descriptor: int, size: int, acknowledged: int, now: float
    ) -> _LimitedStream:
        make_folder(self._folder, private_parent=self._folder.parent)
        earlier = sorted(path for path in self._folder.glob(f"{name}.*") if path.suffix[1:].isdecimal())
        if earlier:  # from a replica that died; values that it had not written are lost
            summary_descriptor = self._open(earlier[0].name, os.O_RDWR)
            return _LimitedStream(
                int(earlier[0].suffix[1:]),
                summary_descriptor,
                _SUMMARY_TYPES[name](),
                os.fstat(summary_descriptor).st_size,
                read_offset=size,
                released_to=size,
                started_at=now,
                write_at=now,
            )
        summary = _SUMMARY_TYPES[name]()
        limit_offset, is_corrupt = self._limit_offset(descriptor, summary)
        limit_offset = max(limit_offset, acknowledged)
        summary_descriptor = self._open(f"{name}.{limit_offset}", os.O_RDWR | os.O_CREAT)
        return _LimitedStream(
            limit_offset,
            summary_descriptor,
            summary,
            read_offset=limit_offset,
            started_at=now,
            write_at=now + _FIRST_WRITE_INTERVAL_S,
            is_corrupt=is_corrupt,
        )

    def _open(self, name: str, flags: int) -> int:
        """Opens a file of the folder without following links. The script can write to the folder, and a link
        could lead to a file that the script must not read.
        """
        folder = open_below(self._folder.parent, self._folder.name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return open_no_follow(name, flags, folder=folder)
        finally:
            os.close(folder)

    def _limit_offset(self, descriptor: int, summary: StreamSummary) -> tuple[int, bool]:
        """Returns the end of the last whole record before the limit, and whether the stream is damaged before
        it. The summary has read all records up to there.
        """
        limit, offset = self.limit_bytes, 0
        if isinstance(summary, LatestLines):
            begin = max(0, limit - _READ_CHUNK_BYTES)
            newline = os.pread(descriptor, limit - begin, begin).rfind(b"\n")
            return (begin + newline + 1 if newline >= 0 else limit), False
        while offset < limit:
            data = os.pread(descriptor, min(_READ_CHUNK_BYTES, limit - offset), offset)
            used = complete_bytes(data)
            if len(data) - used >= MAX_RECORD_BYTES:
                return limit, True
            summary.feed(data[:used])
            offset += used
            if offset + len(data) - used >= limit:
                break
        summary.clear()
        return offset, False

    def _read(self, limited: _LimitedStream, descriptor: int, size: int) -> bool:
        """Reads one chunk and returns whether there may be more."""
        if limited.is_corrupt:
            limited.read_offset = size
            return False
        data = os.pread(descriptor, min(_READ_CHUNK_BYTES, size - limited.read_offset), limited.read_offset)
        try:
            used = limited.summary.feed(data)
        except IntegrityError:
            # A partial record that is being truncated reads as zeros. Only more bytes than one record can
            # have are damage.
            used = complete_bytes(data)
            limited.is_corrupt = len(data) - used >= MAX_RECORD_BYTES
        limited.read_offset += used
        return used > 0

    def _write_summary(self, limited: _LimitedStream, *, ended: bool) -> None:
        """Writes the new values: at most a quarter of the limit in total, half of which is reserved for the
        end.
        """
        remaining_bytes = self.limit_bytes // (4 if ended else 8) - limited.summary_bytes
        data = limited.pending_bytes or (
            limited.summary.drain(remaining_bytes) if remaining_bytes > 0 else b""
        )
        if not data:
            return
        limited.pending_bytes = data
        if os.pwrite(limited.summary_descriptor, data, limited.summary_bytes) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        limited.pending_bytes, limited.summary_bytes = b"", limited.summary_bytes + len(data)
        limited.written_segments.append((limited.read_offset, limited.summary_bytes))

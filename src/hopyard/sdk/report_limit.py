"""The limit of what a run reports: its metrics, TensorBoard scalars, events and samples of what it used.

Up to the limit a stream is sent as it grows; it is cut where a record ends. What follows is read on the node.
At growing intervals, and at the end, the newest value of each metric (of each kind of event) is written to a
file of the replica, which is sent instead. The blocks that were read are given back to the disk. The script
notices nothing.
"""

from __future__ import annotations

import errno
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

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
# how long between two values that are kept: that share of the time since the limit was passed
_FIRST_WRITE_INTERVAL_S, _WRITE_INTERVAL_GROWTH = 2.0, 0.02
_MAX_NAMES = 10_000  # metrics of one stream with values that are kept
_MAX_LINES = 1_000  # of what is reported of a run once
_UNLIMITED_KINDS = frozenset({UNSTORED, RunEventKind.TIME_LIMIT, "note", "environment"})
_MERGED_KINDS = frozenset({"params", "summary"})


class StreamSummary(Protocol):
    """The newest values of a stream's records."""

    def feed(self, data: bytes) -> int:
        """Read the whole records at the beginning of `data`; how many bytes these are.
        Raises IntegrityError when there is a damage."""

    def clear(self) -> None:
        """What was read so far is sent as it is."""

    def drain(self, max_bytes: int) -> bytes:
        """What is new since the last call as records of at most `max_bytes` bytes."""


class LatestPoints:
    """The newest point of each metric. Points without a step are counted, so this has to see a stream from
    its beginning."""

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
        newest, fresh, names = self._latest, self._updated, self._names
        for _, series, given, at, value in points:
            if series in names:
                before = newest.get(series)
                newest[series] = (given if given != NO_STEP else (before[0] + 1 if before else 0), at, value)
                fresh.add(series)

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
    """Of JSON lines the newest of each kind. Values of params and summary are put together; what is reported
    of a run once is kept whole."""

    def __init__(self) -> None:
        self._emit_once: list[bytes] = []
        self._latest: dict[str, dict[str, Any]] = {}
        self._merged: dict[str, dict[str, Any]] = {}
        self._emitted = 0

    def feed(self, data: bytes) -> int:
        used = data.rfind(b"\n") + 1
        if not used and len(data) == _READ_CHUNK_BYTES:
            return len(data)  # no reader takes a line of that length
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
    """Those of `lines` for which there is no room; the others are put into `target`."""
    for at, line in enumerate(lines):
        max_bytes -= len(line)
        if max_bytes < 0:
            return lines[at:]
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
    """One stream that passed its limit. limit_offset: how much of its file the server gets. read_offset: up
    to where its file was read. summary_descriptor: the file of what is sent instead of the rest, and its
    length. pending_bytes: what a full disk did not take of it. written_segments: how much of each there was
    when something was kept."""

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
    """Of all streams of reports of a replica. limit_bytes: of each; 0 is none.
    folder: where what is kept of them lies. log: hears of trouble.

    All but `server_offset` belongs to one thread. A study's journal is not limited: the next driver reads all
    of it.
    """

    def __init__(
        self, limit_bytes: int, folder: Path, *, log: Callable[[str], None] = lambda _: None
    ) -> None:
        self.limit_bytes, self._folder, self._log = limit_bytes, folder, log
        self._limited: dict[str, _LimitedStream] = {}

    def applies(self, name: str, size: int) -> bool:
        """Whether this stream, with a file of `size` bytes, is no longer sent as it is."""
        return (
            bool(self.limit_bytes)
            and name in _SUMMARY_TYPES
            and (size > self.limit_bytes or name in self._limited)
        )

    def update(
        self, name: str, path: str, descriptor: int, size: int, *, acknowledged: int, now: float, ended: bool
    ) -> int:
        """Read what is new in a stream that `applies`; how long the server's copy is to be. Raises OSError
        where what is kept cannot be written: nothing is lost then. acknowledged: how much the server has."""
        limited = self._limited.get(name)
        if limited is None:
            limited = self._limited[name] = self._start_limiting(name, descriptor, size, acknowledged, now)
        pieces = 0
        while limited.read_offset < size and (ended or pieces < _CHUNKS_PER_POLL):
            pieces += 1
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
            # once is enough where the file system cannot: then the file takes its space until the end
            end = limited.read_offset
            before, limited.released_to = max(limited.released_to, limited.limit_offset), end
            try:
                limited.released_to = punch_hole(path, before, end)
            except OSError as failed:
                self._log(f"{name} keeps its disk space until the end: {failed.strerror}")
        return limited.limit_offset + limited.summary_bytes

    def read(self, name: str, descriptor: int, at: int, count: int) -> bytes:
        """At most `count` bytes of what the server gets, from its byte `at` on."""
        limited = self._limited.get(name)
        if limited is None:
            return b""  # there was no room to begin
        if at < limited.limit_offset:
            return os.pread(descriptor, min(count, limited.limit_offset - at), at)
        return os.pread(
            limited.summary_descriptor,
            max(0, min(count, limited.summary_bytes - (at - limited.limit_offset))),
            at - limited.limit_offset,
        )

    def server_offset(self, name: str, offset: int) -> int:
        """Where the server's copy of a stream ends that is cut at byte `offset` of its file."""
        limited = self._limited.get(name)
        if limited is None or offset <= limited.limit_offset:
            return offset
        flushed = list(limited.written_segments)
        at = bisect_right(flushed, offset, key=lambda flush: flush[0])
        return limited.limit_offset + (flushed[at - 1][1] if at else 0)

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
        if earlier:  # of a replica that died: what it had not kept is gone with it
            kept = self._open(earlier[0].name, os.O_RDWR)
            return _LimitedStream(
                int(earlier[0].suffix[1:]),
                kept,
                _SUMMARY_TYPES[name](),
                os.fstat(kept).st_size,
                read_offset=size,
                released_to=size,
                started_at=now,
                write_at=now,
            )
        digest = _SUMMARY_TYPES[name]()
        cut, damaged = self._limit_offset(descriptor, digest)
        cut = max(cut, acknowledged)
        kept = self._open(f"{name}.{cut}", os.O_RDWR | os.O_CREAT)
        return _LimitedStream(
            cut,
            kept,
            digest,
            read_offset=cut,
            started_at=now,
            write_at=now + _FIRST_WRITE_INTERVAL_S,
            is_corrupt=damaged,
        )

    def _open(self, name: str, flags: int) -> int:
        """A file of the folder, which lies where the script writes, too: a link there would lead to what the
        script may not read."""
        folder = open_below(self._folder.parent, self._folder.name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return open_no_follow(name, flags, folder=folder)
        finally:
            os.close(folder)

    def _limit_offset(self, descriptor: int, summary: StreamSummary) -> tuple[int, bool]:
        """The end of the last whole record before the limit, and whether the stream is damaged before it; the
        digest has read all that."""
        limit, at = self.limit_bytes, 0
        if isinstance(summary, LatestLines):
            begin = max(0, limit - _READ_CHUNK_BYTES)
            newline = os.pread(descriptor, limit - begin, begin).rfind(b"\n")
            return (begin + newline + 1 if newline >= 0 else limit), False
        while at < limit:
            data = os.pread(descriptor, min(_READ_CHUNK_BYTES, limit - at), at)
            used = complete_bytes(data)
            if len(data) - used >= MAX_RECORD_BYTES:
                return limit, True
            summary.feed(data[:used])
            at += used
            if at + len(data) - used >= limit:
                break
        summary.clear()
        return at, False

    def _read(self, limited: _LimitedStream, descriptor: int, size: int) -> bool:
        """Read one piece; whether there may be more."""
        if limited.is_corrupt:
            limited.read_offset = size
            return False
        data = os.pread(descriptor, min(_READ_CHUNK_BYTES, size - limited.read_offset), limited.read_offset)
        try:
            used = limited.summary.feed(data)
        except IntegrityError:
            # Half a record that is being taken back just now reads as zeros: only what is longer than one is
            # damage.
            used = complete_bytes(data)
            limited.is_corrupt = len(data) - used >= MAX_RECORD_BYTES
        limited.read_offset += used
        return used > 0

    def _write_summary(self, limited: _LimitedStream, *, ended: bool) -> None:
        """Write what is new: at most a quarter of the limit in all, half of which is left for the end."""
        room = self.limit_bytes // (4 if ended else 8) - limited.summary_bytes
        data = limited.pending_bytes or (limited.summary.drain(room) if room > 0 else b"")
        if not data:
            return
        limited.pending_bytes = data
        if os.pwrite(limited.summary_descriptor, data, limited.summary_bytes) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        limited.pending_bytes, limited.summary_bytes = b"", limited.summary_bytes + len(data)
        limited.written_segments.append((limited.read_offset, limited.summary_bytes))

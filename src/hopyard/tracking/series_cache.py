"""Keeps the decoded series of runs in memory, and reads only what has arrived since.

An entry is exact: it belongs to the visible parts of the streams (attempts, checkpoints, restarts) and to
their lengths, which are compared at each use. Streams are append-only, so equal lengths are equal bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from hopyard.domain.ids import RunId
from hopyard.domain.metric_records import POINT_BYTES
from hopyard.domain.stream_limits import METRIC_STREAMS
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.metrics import Series, SeriesReader
from hopyard.tracking.rollback import VisibleStreams
from hopyard.tracking.run_history import RunHistory
from hopyard.tracking.series_columns import BoundedMemory, Columns
from hopyard.tracking.usage_series import SYSTEM_STREAM, UsageReader

DEFAULT_MAX_BYTES = 160 * 1024 * 1024
_ALL_NAMES_BYTES = 256 * 1024 * POINT_BYTES  # of a run with fewer bytes of metrics all names are decoded
RunLengths = Mapping[RunId, Mapping[StreamKey, int]]
_Key = tuple[RunId, int | None, str]
_Signature = tuple[tuple[datetime, VisibleStreams], ...]


class _Reader(Protocol):
    """Series that can be continued: of metrics, or of resource usage."""

    @property
    def series(self) -> Mapping[str, Series]: ...
    @property
    def is_downsampled(self) -> bool: ...
    async def extend(self, streams: Streams, grown: Collection[StreamKey], /) -> bool: ...
    def end_of(self, key: StreamKey, /) -> int | None: ...


@dataclass(slots=True)
class _Entry:
    """names: the requested ones that were read; None is all. reading: of a live run, to be continued."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    signature: _Signature = ()
    lengths: dict[StreamKey, int] = field(default_factory=dict)
    names: frozenset[str] | None = frozenset()
    max_points: int = 0
    is_downsampled: bool = False
    columns: dict[str, Columns] = field(default_factory=dict)
    reading: _Reader | None = None

    @property
    def size_bytes(self) -> int:
        copies = 1 if self.reading is None else 2
        return copies * sum(columns.size_bytes for columns in self.columns.values())

    def covers(self, signature: _Signature, names: frozenset[str] | None, max_points: int) -> bool:
        has_names = self.names is None or (names is not None and names <= self.names)
        has_points = not self.is_downsampled or max_points <= self.max_points
        return signature == self.signature and has_names and has_points


class SeriesCache:
    """The decoded series of the runs that were read last, up to `max_bytes`."""

    def __init__(self, streams: Streams, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._streams = streams
        self.memory: BoundedMemory[_Key, _Entry] = BoundedMemory(max_bytes)
        self.reads = 0  # how many times streams were read from their begin
        self.extensions = 0  # how many times only new bytes were read

    async def metrics(
        self,
        history: RunHistory,
        lengths: RunLengths,
        *,
        names: Collection[str],
        rank: int | None,
        max_points: int,
    ) -> Mapping[str, Columns]:
        """Returns the metrics of a run as `read_series` selects them, at least those of these names; `*` in a
        name is any text. lengths: of the streams of the run and of the runs that evaluate it, read after the
        history. max_points: of the run; more are downsampled."""
        selected = _select(history, lengths, METRIC_STREAMS, rank)
        signature = _signature(history)
        requested: frozenset[str] | None = frozenset(names)
        entry = self._entry((history.run.id, rank, "metrics"))
        async with entry.lock:
            if sum(selected.values()) <= _ALL_NAMES_BYTES:
                requested = None
            elif signature == entry.signature and entry.names is not None:
                requested = frozenset({*names, *entry.names})

            async def read() -> _Reader:
                return await SeriesReader.read(
                    self._streams, history, names=requested, rank=rank, max_total=max_points
                )

            if not entry.covers(signature, frozenset(names), max_points):
                entry.signature = ()
            await self._update(entry, signature, selected, requested, max_points, read, Columns.of_series)
            return self._keep((history.run.id, rank, "metrics"), entry, history)

    async def usage(
        self, history: RunHistory, lengths: RunLengths, *, rank: int | None, max_points: int
    ) -> Mapping[str, Columns]:
        """Returns the resource usage of one replica of a run, by default of the lowest one, by the names of
        `domain.system_series`."""
        selected = {
            key: length
            for key, length in lengths.get(history.run.id, {}).items()
            if key.name == SYSTEM_STREAM and rank in (None, key.rank)
        }
        signature = ((history.run.submitted_at, VisibleStreams((), {})),)
        entry = self._entry((history.run.id, rank, SYSTEM_STREAM))
        async with entry.lock:

            async def read() -> _Reader:
                return await UsageReader.read(self._streams, selected, rank=rank, max_total=max_points)

            if not entry.covers(signature, frozenset(), max_points):
                entry.signature = ()
            await self._update(entry, signature, selected, None, max_points, read, Columns.of_usage)
            return self._keep((history.run.id, rank, SYSTEM_STREAM), entry, history)

    def _entry(self, key: _Key) -> _Entry:
        entry = self.memory.find(key)
        if entry is None:
            entry = _Entry()
            self.memory.put(key, entry)
        return entry

    def _keep(self, key: _Key, entry: _Entry, history: RunHistory) -> Mapping[str, Columns]:
        if history.run.phase.is_final:
            entry.reading = None
        self.memory.put(key, entry)
        return entry.columns

    async def _update(
        self,
        entry: _Entry,
        signature: _Signature,
        lengths: Mapping[StreamKey, int],
        names: frozenset[str] | None,
        max_points: int,
        read: Callable[[], Awaitable[_Reader]],
        to_columns: Callable[[Series], Columns],
    ) -> None:
        """Brings an entry up to these lengths. An entry without a signature is read from the begin."""
        is_current = entry.signature == signature
        grown = [key for key, length in lengths.items() if length > entry.lengths.get(key, 0)]
        if is_current and not grown:
            return
        reading = entry.reading if is_current else None
        entry.signature = ()  # until the new series are complete
        if reading is not None and await reading.extend(self._streams, grown):
            self.extensions += 1
        else:
            reading = await read()
            self.reads += 1
            entry.names, entry.max_points, entry.columns = names, max_points, {}
        series = {name: each for name, each in reading.series.items() if len(each.values)}
        entry.columns = await asyncio.to_thread(_copy, series, entry.columns, to_columns)
        entry.is_downsampled = reading.is_downsampled
        # bytes may have arrived since the lengths were read
        entry.lengths = {key: max(length, reading.end_of(key) or 0) for key, length in lengths.items()}
        entry.reading, entry.signature = reading, signature


def _copy(
    series: Mapping[str, Series], earlier: Mapping[str, Columns], to_columns: Callable[[Series], Columns]
) -> dict[str, Columns]:
    """Returns the series as columns; the earlier columns of a series that has the same points."""
    copies: dict[str, Columns] = {}
    for name, each in series.items():
        columns, known = to_columns(each), earlier.get(name)
        length = len(columns)
        is_same = known is not None and len(known) == length and known.count == columns.count
        if known is not None and is_same and known.checksum(length) == columns.checksum(length):
            columns = known
        copies[name] = columns
    return copies


def _signature(history: RunHistory) -> _Signature:
    """Returns what decides which parts of the streams are visible. The time of submission
    differs from that of a removed run with the same id."""
    histories = (history, *history.evaluations)
    return tuple((each.run.submitted_at, each.visible_streams) for each in histories)


def _select(
    history: RunHistory, lengths: RunLengths, names: Collection[str], rank: int | None
) -> dict[StreamKey, int]:
    """Returns the lengths of these streams of a run, and of the runs that evaluate it."""
    evaluators = () if rank not in (None, 0) else [each.run.id for each in history.evaluations]
    return {
        key: length
        for run in (history.run.id, *evaluators)
        for key, length in lengths.get(run, {}).items()
        if key.name in names and (rank is None or key.rank == rank or run != history.run.id)
    }

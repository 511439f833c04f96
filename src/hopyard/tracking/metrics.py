"""Reads metrics back: columns per name, downsampled where the request limits the points."""

from __future__ import annotations

import asyncio
from array import array
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hopyard.domain.metric_records import NO_STEP, POINT_BYTES, read_point_blocks, step_after
from hopyard.domain.stream_limits import METRIC_STREAMS
from hopyard.errors import IntegrityError
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.downsampling import extreme_positions
from hopyard.tracking.run_history import RunHistory

_READ_BYTES = 4 * 1024 * 1024
_MIN_READ_BYTES = 64 * 1024  # are read at once; more in a thread, so that others are served meanwhile
MAX_POINTS = 1_000_000  # of all series together
_BYTES_PER_POINT, _BYTES_PER_RESPONSE_POINT = (
    24,
    100,
)  # in arrays, and as Python numbers in lists beside these


@dataclass(slots=True)
class Series:
    """One metric. steps, values, times (unix seconds) have equal lengths; `count` is how many points there
    were before thinning."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    times: array[float] = field(default_factory=lambda: array("d"))
    count: int = 0
    dropped: bool = False  # while it is read: others come first, so what follows is passed over


class _SeriesSelection:
    """The series of one rank while its streams are read: of the names that are wanted the first `limit`, in
    order of the alphabet."""

    def __init__(self, requested: set[str] | None, after: str | None, limit: int | None) -> None:
        self.series: dict[str, Series] = {}
        self._requested, self._after, self._limit = requested, after, limit
        self._selected: list[str] = []  # names of `series`, sorted

    def reader(self) -> _ColumnReader:
        return _ColumnReader(self)

    def find_series(self, name: str) -> Series | None:
        """The series to which points of this name go; None where it is not wanted."""
        found = self.series.get(name)
        if (
            found is not None
            or (self._requested is not None and name not in self._requested)
            or (self._after is not None and name <= self._after)
        ):
            return found
        if self._limit is not None and len(self._selected) >= self._limit:
            if name > self._selected[-1]:
                return None
            self.series.pop(self._selected.pop()).dropped = True
        insort(self._selected, name)
        return self.series.setdefault(name, Series())


class _ColumnReader:
    """Reads one stream into columns, piece by piece."""

    def __init__(self, columns: _SeriesSelection) -> None:
        self._columns = columns
        self._names: dict[int, str] = {}
        self._series_by_id: dict[int, Series | None] = {}
        self._partial_record = b""  # a record that the end of a read cut in two

    def feed(self, data: bytes) -> None:
        """Raises IntegrityError at damage; what comes before it is taken."""
        self._partial_record += data
        for part in read_point_blocks(self._partial_record, self._names):
            if isinstance(part, int):
                self._partial_record = self._partial_record[part:]
            else:
                self._append(part)

    def _append(self, points: Iterator[tuple[int, int, int, float, float]]) -> None:
        found = self._series_by_id
        for _, number, given, time, value in points:
            try:
                series = found[number]
            except KeyError:
                name = self._names.get(number)
                series = found[number] = None if name is None else self._columns.find_series(name)
            if series is not None:
                if series.dropped:
                    found[number] = None
                    continue
                steps = series.steps
                steps.append(given if given != NO_STEP else step_after(steps[-1]) if steps else 0)
                series.values.append(value)
                series.times.append(time)


async def read_series(
    streams: Streams,
    history: RunHistory,
    *,
    names: Iterable[str] | None = None,
    after: str | None = None,
    limit: int | None = None,
    rank: int | None = None,
    max_points: int | None = None,
) -> dict[str, Series]:
    """The metrics as users see them, rolled-back parts left out, by name.

    names: only these. after, limit: only names after this one, and at most so many. rank: only this replica's
    word; None takes for each name the lowest rank that logged it. max_points: at most about so many a series;
    of each stretch the least and the largest value are kept. There are never more than MAX_POINTS: all
    series are thinned then.
    A point that was logged without a step gets the one after the step before it. A damaged stream is read up
    to the damage.
    """
    wanted = None if names is None else set(names)
    keys = await streams.list(history.run.id)
    ranks = sorted({key.rank for key in keys}) if rank is None else [rank]
    found: dict[str, Series] = {}
    for one in ranks:
        columns = _SeriesSelection(wanted, after, limit)
        for attempt in history.visible_streams.attempts:
            for stream in METRIC_STREAMS:
                key = StreamKey(attempt, one, stream)
                if key in keys:
                    await _merge_stream(
                        streams,
                        key,
                        history.visible_streams.visible_length_of(attempt, one, stream),
                        columns,
                        found,
                    )
        for name, series in columns.series.items():
            found.setdefault(name, series)
    shown = dict(sorted(found.items())[:limit])
    await asyncio.to_thread(_downsample_to_limit, shown, max_points)
    return shown


async def estimate_series_bytes(streams: Streams, history: RunHistory, *, max_points: int | None) -> int:
    """About how much memory `read_series` and an answer with all that it gives take at most."""
    points = 0
    for attempt, rank in {
        (key.attempt, key.rank) for key in await streams.list(history.run.id) if key.name in METRIC_STREAMS
    }:
        lengths = await streams.lengths(attempt, rank)
        points += sum(lengths.get(stream, 0) for stream in METRIC_STREAMS) // POINT_BYTES
    return min(points, MAX_POINTS) * (
        _BYTES_PER_POINT + (_BYTES_PER_RESPONSE_POINT if max_points is None else 0)
    )


def _downsample_to_limit(all_series: dict[str, Series], max_points: int | None) -> None:
    for series in all_series.values():
        series.count += len(series.values)
        if max_points is not None:
            _downsample(series, max_points)


async def _merge_stream(
    streams: Streams, key: StreamKey, limit: int | None, columns: _SeriesSelection, others: dict[str, Series]
) -> None:
    reader, at = columns.reader(), 0
    while limit is None or at < limit:
        data = await streams.read(key, at, _READ_BYTES if limit is None else min(_READ_BYTES, limit - at))
        if not data:
            return
        at += len(data)
        try:
            if len(data) <= _MIN_READ_BYTES:
                reader.feed(data)
            else:
                await asyncio.to_thread(reader.feed, data)
        except IntegrityError:
            return
        every = [*columns.series.values(), *others.values()]
        if sum(len(series.values) for series in every) > MAX_POINTS:
            await asyncio.to_thread(_halve_all, every)


def _halve_all(all_series: Sequence[Series]) -> None:
    """Downsample all series alike, to half of what there may be together."""
    each = MAX_POINTS // 2 // len(all_series)
    for series in all_series:
        before = len(series.values)
        _downsample(series, max(1, each))
        series.count += before - len(series.values)


def _downsample(series: Series, max_points: int) -> None:
    kept = extreme_positions(series.values, max_points)
    if len(kept) < len(series.values):
        series.steps = array("q", [series.steps[at] for at in kept])
        series.values = array("d", [series.values[at] for at in kept])
        series.times = array("d", [series.times[at] for at in kept])

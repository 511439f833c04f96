"""Reads metrics into columns by name, downsampled if the caller limits the points."""

from __future__ import annotations

import asyncio
import re
from array import array
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hopyard.domain.ids import AttemptId
from hopyard.domain.metric_records import (
    NO_STEP,
    POINT_BYTES,
    read_point_views,
    step_after,
    unpack_points,
)
from hopyard.domain.name_pattern import compile_name_pattern
from hopyard.domain.stream_limits import METRIC_STREAMS
from hopyard.errors import IntegrityError
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.downsampling import extreme_positions
from hopyard.tracking.latest_metrics import LatestMetrics
from hopyard.tracking.point_columns import Points, assign_steps, split_by_series
from hopyard.tracking.process_restarts import read_spans
from hopyard.tracking.run_history import RunHistory

_READ_BYTES = 4 * 1024 * 1024
_MIN_READ_BYTES = (
    64 * 1024
)  # up to so many are parsed on the event loop; more in a thread, so that other requests are served
_MIN_COLUMN_POINTS = 64  # fewer adjacent points are faster one by one
_FIRST_READ_BYTES = 64 * 1024  # definitions of over 60 names and the first point
MAX_POINTS = 1_000_000  # of all series together
_BYTES_PER_POINT, _BYTES_PER_RESPONSE_POINT = (
    24,
    100,
)  # in arrays, and additionally as Python numbers in lists


@dataclass(slots=True)
class Series:
    """The points of one metric. steps, values, times (unix seconds) have equal lengths. `count` is the number
    of points before downsampling."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    times: array[float] = field(default_factory=lambda: array("d"))
    count: int = 0
    dropped: bool = False  # replaced by earlier names while it was read: later points are ignored


class _SeriesSelection:
    """The series of one rank while its streams are read: the first `limit` of the requested names, in
    alphabetical order."""

    def __init__(
        self,
        requested: set[str] | None,
        after: str | None = None,
        limit: int | None = None,
        patterns: Sequence[re.Pattern[str]] = (),
    ) -> None:
        self.series: dict[str, Series] = {}
        self._requested, self._after, self._limit = requested, after, limit
        self._patterns = patterns
        self._selected: list[str] = []  # names of `series`, sorted

    def reader(self, logged: Collection[str] = ()) -> _ColumnReader:
        return _ColumnReader(self, logged)

    def find_series(self, name: str) -> Series | None:
        """Returns the series to which points of this name are added; None if it is not selected."""
        series = self.series.get(name)
        if (
            series is not None
            or not self._is_requested(name)
            or (self._after is not None and name <= self._after)
        ):
            return series
        if self._limit is not None and len(self._selected) >= self._limit:
            if name > self._selected[-1]:
                return None
            self.series.pop(self._selected.pop()).dropped = True
        insort(self._selected, name)
        return self.series.setdefault(name, Series())

    def _is_requested(self, name: str) -> bool:
        if self._requested is None or name in self._requested:
            return True
        return any(pattern.fullmatch(name) for pattern in self._patterns)


class _ColumnReader:
    """Reads one stream into columns, piece by piece. logged: names that the script logged with `hop.log`;
    points of event files with these names are ignored."""

    def __init__(self, columns: _SeriesSelection, logged: Collection[str] = ()) -> None:
        self._columns, self._logged = columns, logged
        self._names: dict[int, str] = {}
        self._series_by_id: dict[int, Series | None] = {}
        self._partial_record = b""  # a record that the end of a read cut off
        self._repeated = set[int]()  # series of which the next point may repeat earlier ones

    def feed(self, data: bytes, *, hidden: bool = False) -> None:
        """hidden: a later process repeats these points, so only the names are read. Raises IntegrityError for
        damaged data; the records before it are read."""
        self._partial_record += data
        on_purge = None if hidden else self._purge
        for part in read_point_views(self._partial_record, self._names, on_purge):
            if isinstance(part, int):
                self._partial_record = self._partial_record[part:]
            elif hidden:
                continue
            elif len(part) < _MIN_COLUMN_POINTS * POINT_BYTES:
                self._append(unpack_points(part))
            else:
                for number, points in split_by_series(part):
                    self._append_columns(number, points)

    def _purge(self, number: int, step: int) -> None:
        """Hides the points of a TensorBoard writer that another one continues."""
        name = self._names.get(number)
        series = None if name is None or name in self._logged else self._columns.series.get(name)
        if series is not None:
            _drop_from(series, step)

    @property
    def names_with_points(self) -> set[str]:
        """The names of visible points, whether or not they are selected."""
        return {self._names[number] for number in self._series_by_id if number in self._names}

    def restart(self) -> None:
        """Begins the points of the next process. They replace earlier ones from their first step on."""
        self._partial_record = b""
        self._repeated = set(self._names)

    def _append(self, points: Iterator[tuple[int, int, int, float, float]]) -> None:
        for _, number, logged_step, time, value in points:
            series = self._begin(number, logged_step)
            if series is not None:
                steps = series.steps
                steps.append(logged_step if logged_step != NO_STEP else step_after(steps[-1]) if steps else 0)
                series.values.append(value)
                series.times.append(time)

    def _append_columns(self, number: int, points: Points) -> None:
        """As `_append`, for the points of one series."""
        series = self._begin(number, int(points["step"][0]))
        if series is not None:
            steps = assign_steps(points["step"], series.steps[-1] if series.steps else None)
            series.steps.frombytes(steps.tobytes())
            series.values.frombytes(points["value"].tobytes())
            series.times.frombytes(points["time"].tobytes())

    def _begin(self, number: int, logged_step: int) -> Series | None:
        """Returns the series to which points of this number are added; None if it is not selected. The first
        points after a restart replace those from `logged_step` on."""
        series_by_id = self._series_by_id
        try:
            series = series_by_id[number]
        except KeyError:
            name = self._names.get(number)
            series = series_by_id[number] = (
                None if name is None or name in self._logged else self._columns.find_series(name)
            )
        if series is None:
            return None
        if series.dropped:
            series_by_id[number] = None
            return None
        if number in self._repeated:
            self._repeated.discard(number)
            if logged_step != NO_STEP:
                _drop_from(series, logged_step)
        return series


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
    """Returns the metrics that users see, by name. Rolled-back parts are omitted.

    names: only these; `*` is any text. after, limit: only names after this one, and at most so many. rank:
    only the values of this replica; None takes for each name the lowest rank that logged it. max_points: at
    most about so many per series; each bucket keeps its minimum and maximum. All series are downsampled so
    that their total never exceeds MAX_POINTS.
    A script that resumes from its own checkpoint continues the curves of the attempt before: points before
    the first step of the new attempt stay visible, as in TensorBoard. An attempt without points hides none.
    The points of runs that evaluate its checkpoints follow, those of the newest evaluation where several
    have a point of one step. Points of event files and of printed lines are omitted if the same replica
    logged the name with `hop.log` in that attempt. A point that was logged without a step gets the step
    after the previous one. A damaged stream is read up to the damage.
    """
    reading = await SeriesReader.read(streams, history, names=names, after=after, limit=limit, rank=rank)
    selected = dict(sorted(reading.series.items())[:limit])
    await asyncio.to_thread(_downsample_to_limit, selected, max_points)
    return selected


@dataclass(slots=True)
class _StreamEnd:
    """The end of a replica's newest metric stream: bytes that arrive later are read from here on."""

    reader: _ColumnReader
    position: int = 0
    is_damaged: bool = False


class SeriesReader:
    """The metrics of a run as `read_series` describes them, in full, and the bytes of a live run that arrive
    later. max_total: more points are downsampled together; then `Series.count` is the number of points that
    are omitted."""

    def __init__(
        self, history: RunHistory, *, requested: set[str] | None, rank: int | None, max_total: int
    ) -> None:
        self.series: dict[str, Series] = {}
        self._history, self._requested, self._rank = history, requested, rank
        self._max_total = max_total
        self._patterns = [compile_name_pattern(name) for name in requested or () if "*" in name]
        self._selections: list[_SeriesSelection] = []  # of each rank, the lowest first
        self._ends: dict[StreamKey, _StreamEnd] = {}

    @classmethod
    async def read(
        cls,
        streams: Streams,
        history: RunHistory,
        *,
        names: Iterable[str] | None = None,
        after: str | None = None,
        limit: int | None = None,
        rank: int | None = None,
        max_total: int = MAX_POINTS,
    ) -> SeriesReader:
        """Reads all that is stored. The arguments are those of `read_series`."""
        requested = None if names is None else set(names)
        reading = cls(history, requested=requested, rank=rank, max_total=max_total)
        await reading._read_all(streams, after, limit)
        return reading

    @property
    def is_downsampled(self) -> bool:
        """Whether points are omitted, because there are more than `max_total`."""
        return any(series.count for series in self.series.values())

    async def extend(self, streams: Streams, grown: Collection[StreamKey]) -> bool:
        """Adds the bytes that were appended to these streams. Returns False if the series cannot be continued
        and must be read again: another stream than the newest of a replica has grown, or points are
        omitted."""
        view = self._history.visible_streams
        if (
            view.restarted_attempts
            or self._history.evaluations
            or self.is_downsampled
            or any(key not in self._ends for key in grown)
        ):
            return False
        for key in sorted(grown):
            end = self._ends[key]
            while not end.is_damaged and (data := await streams.read(key, end.position, _READ_BYTES)):
                end.position += len(data)
                end.is_damaged = not await _feed(end.reader, data)
        self.series = self._merge_ranks()
        return sum(len(series.values) for series in self.series.values()) <= self._max_total

    def _merge_ranks(self) -> dict[str, Series]:
        merged: dict[str, Series] = {}
        for selection in self._selections:
            for name, series in selection.series.items():
                merged.setdefault(name, series)
        return merged

    def end_of(self, key: StreamKey) -> int | None:
        """Returns how many bytes of a stream that `extend` continues were read; None for another stream."""
        end = self._ends.get(key)
        return None if end is None else end.position

    async def _read_all(self, streams: Streams, after: str | None, limit: int | None) -> None:
        view, rank = self._history.visible_streams, self._rank
        keys = await streams.list(self._history.run.id)
        ranks = sorted({key.rank for key in keys}) if rank is None else [rank]
        for series_rank in ranks:
            columns = _SeriesSelection(self._requested, after, limit, self._patterns)
            for attempt in view.attempts:
                await self._merge_streams(streams, _metric_keys(keys, attempt, series_rank), columns)
            restarted = view.restarted_attempts
            first_steps = [
                await first_step(streams, keys, attempt, series_rank)
                for attempt in (view.attempts if restarted else ())
            ]
            for attempt in reversed(restarted):
                earlier = _SeriesSelection(self._requested, after, None, self._patterns)
                await self._merge_streams(streams, _metric_keys(keys, attempt, series_rank), earlier)
                end = min((step for step in first_steps if step is not None), default=None)
                for name, series in earlier.series.items():
                    later = columns.series.setdefault(name, Series())
                    _prepend_earlier(later, series, later.steps[0] if later.steps else end)
                    if not later.steps:
                        del columns.series[name]
                first_steps.append(await first_step(streams, keys, attempt, series_rank))
            self._selections.append(columns)
            self.series = self._merge_ranks()
        for evaluation in self._history.evaluations if rank in (None, 0) else ():
            found = await read_series(streams, evaluation, names=self._requested, after=after, limit=limit)
            for name, series in found.items():
                _merge_steps(self.series.setdefault(name, Series()), series)

    async def _merge_streams(
        self, streams: Streams, keys: Sequence[StreamKey], columns: _SeriesSelection
    ) -> None:
        """Adds the metric streams of one replica in one attempt. A name has one source: the first stream with
        points of it."""
        view, logged = self._history.visible_streams, set[str]()
        for key in keys:
            end = _StreamEnd(columns.reader(frozenset(logged)))
            await self._merge_stream(streams, key, end, columns)
            logged |= end.reader.names_with_points
            is_open = view.visible_length_of(key.attempt, key.rank, key.name) is None
            is_newest = key == keys[-1] and key.attempt == view.attempts[-1]
            if is_open and is_newest and not view.restarts_of(key.attempt, key.rank, key.name):
                self._ends[key] = end

    async def _merge_stream(
        self, streams: Streams, key: StreamKey, end: _StreamEnd, columns: _SeriesSelection
    ) -> None:
        view = self._history.visible_streams
        async for span, data in read_spans(streams, key, view, block_bytes=_READ_BYTES):
            if span.is_restart:
                end.reader.restart()
            end.position += len(data)
            if not await _feed(end.reader, data, hidden=span.is_hidden):
                end.is_damaged = True
                return
            all_series = [*columns.series.values(), *self.series.values()]
            if sum(len(series.values) for series in all_series) > self._max_total:
                await asyncio.to_thread(downsample_together, all_series, self._max_total)


async def _feed(reader: _ColumnReader, data: bytes, *, hidden: bool = False) -> bool:
    """Returns whether the data is intact up to its end."""
    try:
        if len(data) <= _MIN_READ_BYTES:
            reader.feed(data, hidden=hidden)
        else:
            await asyncio.to_thread(reader.feed, data, hidden=hidden)
    except IntegrityError:
        return False
    return True


async def first_step(
    streams: Streams, keys: Collection[StreamKey], attempt: AttemptId, rank: int
) -> int | None:
    """Returns the step of the first point of an attempt; None without points."""
    steps: list[int] = []
    for key in _metric_keys(keys, attempt, rank):
        first = LatestMetrics()
        first.feed(await streams.read(key, 0, _FIRST_READ_BYTES))
        steps += [] if first.first_step is None else [first.first_step]
    return min(steps, default=None)


def _metric_keys(keys: Collection[StreamKey], attempt: AttemptId, rank: int) -> list[StreamKey]:
    """Returns the metric streams of one replica, that of `hop.log` first."""
    return [key for name in METRIC_STREAMS if (key := StreamKey(attempt, rank, name)) in keys]


def _merge_steps(series: Series, newer: Series) -> None:
    """Adds the points of a newer evaluation, in the order of their steps. They replace points of their
    steps."""
    steps = set(newer.steps)
    _select(series, [position for position, each in enumerate(series.steps) if each not in steps])
    series.steps.extend(newer.steps)
    series.values.extend(newer.values)
    series.times.extend(newer.times)
    _select(series, sorted(range(len(series.steps)), key=series.steps.__getitem__))


def _drop_from(series: Series, step: int) -> None:
    """Removes the points at this step and after it."""
    kept = [position for position, each in enumerate(series.steps) if each < step]
    if len(kept) < len(series.steps):
        _select(series, kept)


def _prepend_earlier(series: Series, earlier: Series, end: int | None) -> None:
    """Adds the points of an earlier attempt that are before the step `end`; None adds all."""
    kept = [position for position, step in enumerate(earlier.steps) if end is None or step < end]
    if kept:
        series.steps = array("q", [earlier.steps[position] for position in kept]) + series.steps
        series.values = array("d", [earlier.values[position] for position in kept]) + series.values
        series.times = array("d", [earlier.times[position] for position in kept]) + series.times


async def estimate_series_bytes(streams: Streams, history: RunHistory, *, max_points: int | None) -> int:
    """Returns about how much memory `read_series` and a response with its result use at most."""
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


def downsample_together(all_series: Sequence[Series], max_total: int) -> None:
    """Downsamples all series equally, to half of `max_total` in total. `Series.count` counts the omitted
    points."""
    points_per_series = max_total // 2 // len(all_series)
    for series in all_series:
        old_count = len(series.values)
        _downsample(series, max(1, points_per_series))
        series.count += old_count - len(series.values)


def _downsample(series: Series, max_points: int) -> None:
    positions = extreme_positions(series.values, max_points)
    if len(positions) < len(series.values):
        _select(series, positions)


def _select(series: Series, positions: Sequence[int]) -> None:
    series.steps = array("q", [series.steps[position] for position in positions])
    series.values = array("d", [series.values[position] for position in positions])
    series.times = array("d", [series.times[position] for position in positions])

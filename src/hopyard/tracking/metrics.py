"""Reading metrics back: columns per name, thinned out where fewer points are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hopyard.domain.points import NO_STEP, read_stretches
from hopyard.errors import IntegrityError
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.past import Past

_STREAMS = ("metrics", "tensorboard")
_READ_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class Series:
    """One metric. steps, values, times (unix seconds) have equal lengths; `count` is how many points there were before thinning."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    count: int = 0


async def read_series(
    streams: Streams, past: Past, *, names: Iterable[str] | None = None, rank: int | None = None, max_points: int | None = None
) -> dict[str, Series]:
    """The metrics as users see them, rolled-back parts left out, by name.

    names: only these. rank: only this replica's word; None takes for each name the lowest rank that logged it.
    max_points: at most about so many a series; of each stretch the least and the largest value are kept.
    A point that was logged without a step gets the one after the step before it. A damaged stream is read up to the damage.
    """
    wanted = None if names is None else set(names)
    keys = await streams.list(past.run.id)
    ranks = sorted({key.rank for key in keys}) if rank is None else [rank]
    found: dict[str, Series] = {}
    for one in ranks:
        mine: dict[str, Series] = {}
        for attempt in past.view.attempts:
            for stream in _STREAMS:
                key = StreamKey(attempt, one, stream)
                if key in keys:
                    await _collect(streams, key, past.view.limit(attempt, one, stream), wanted, mine)
        for name, series in mine.items():
            found.setdefault(name, series)
    for series in found.values():
        series.count = len(series.values)
        if max_points is not None:
            thin(series, max_points)
    return dict(sorted(found.items()))


async def _collect(streams: Streams, key: StreamKey, limit: int | None, wanted: set[str] | None, into: dict[str, Series]) -> None:
    names: dict[int, str] = {}
    columns: dict[int, Series | None] = {}
    at, rest = 0, b""  # rest: a record that the end of a read cut in two
    while limit is None or at < limit:
        data = await streams.read(key, at, _READ_BYTES if limit is None else min(_READ_BYTES, limit - at))
        if not data:
            return
        at += len(data)
        rest += data
        try:
            for part in read_stretches(rest, names):
                if isinstance(part, int):
                    rest = rest[part:]
                else:
                    _append(part, names, columns, wanted, into)
        except IntegrityError:
            return
        await asyncio.sleep(0)


def _append(
    points: Iterator[tuple[int, int, int, float, float]],
    names: dict[int, str],
    columns: dict[int, Series | None],
    wanted: set[str] | None,
    into: dict[str, Series],
) -> None:
    for _, number, given, time, value in points:
        try:
            series = columns[number]
        except KeyError:
            name = names.get(number)
            keep = name is not None and (wanted is None or name in wanted)
            series = columns[number] = into.setdefault(name, Series()) if keep and name is not None else None
        if series is not None:
            steps = series.steps
            steps.append(given if given != NO_STEP else steps[-1] + 1 if steps else 0)
            series.values.append(value)
            series.times.append(time)


def thin(series: Series, max_points: int) -> None:
    """Keep the least and the largest of each of max_points / 2 stretches, in order; the first and last point always stay."""
    count = len(series.values)
    if count <= max_points or max_points < 1:
        return
    kept = {0, count - 1} if max_points > 1 else {count - 1}
    buckets = max(0, (max_points - 2) // 2)
    for bucket in range(buckets):
        begin, end = bucket * count // buckets, (bucket + 1) * count // buckets
        kept.update(_extremes(series.values, begin, end))
    order = sorted(kept)
    series.steps = [series.steps[at] for at in order]
    series.values = [series.values[at] for at in order]
    series.times = [series.times[at] for at in order]


def _extremes(values: Sequence[float], begin: int, end: int) -> tuple[int, ...]:
    """Where the least and the largest value of a stretch stand; values that are not numbers are passed over."""
    numbers = [at for at in range(begin, end) if values[at] == values[at]]
    if not numbers:
        return ()
    return min(numbers, key=values.__getitem__), max(numbers, key=values.__getitem__)

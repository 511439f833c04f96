"""Reads the series of several runs for one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopyard.domain.ids import RunId
from hopyard.domain.name_pattern import compile_name_pattern
from hopyard.domain.stream_limits import METRIC_STREAMS
from hopyard.domain.system_series import SYSTEM_PREFIX
from hopyard.errors import SpecError
from hopyard.interfaces.streams import Streams
from hopyard.tracking.run_history import RunHistory
from hopyard.tracking.series_cache import RunLengths, SeriesCache
from hopyard.tracking.series_columns import Columns
from hopyard.tracking.series_curves import Curve
from hopyard.tracking.usage_series import SYSTEM_STREAM

_MAX_POINTS, _MIN_POINTS_PER_RUN = 4_000_000, 100_000  # of a request
MAX_SERIES = 1000  # of a request
_ALL = "*"


@dataclass(frozen=True, slots=True)
class SeriesSelection:
    """names: of metrics, and of resource usage those that begin with `sys/`; `*` is any text. ranks: None
    takes for each name the lowest rank that has it; () takes all ranks separately. x_metric: a metric whose
    values are the x axis."""

    names: tuple[str, ...]
    ranks: tuple[int, ...] | None = None
    x_metric: str | None = None


async def load_lengths(streams: Streams, histories: Sequence[RunHistory]) -> RunLengths:
    """Returns the lengths of the streams of these runs, and of the runs that evaluate them."""
    runs = [each.run.id for history in histories for each in (history, *history.evaluations)]
    return await streams.lengths_of_runs(list(dict.fromkeys(runs)))


async def read_curves(
    cache: SeriesCache, streams: Streams, histories: Sequence[RunHistory], selection: SeriesSelection
) -> list[Curve]:
    """Returns the selected series of each run, in the order of the runs. Raises SpecError for too many
    series."""
    lengths = await load_lengths(streams, histories)
    max_points = max(_MIN_POINTS_PER_RUN, _MAX_POINTS // max(1, len(histories)))
    names = [name for name in selection.names if not name.startswith(SYSTEM_PREFIX)]
    usage_names = [name for name in selection.names if name.startswith(SYSTEM_PREFIX)]
    curves: list[Curve] = []
    for history in histories:
        run = history.run
        origin = (run.started_at or run.submitted_at).timestamp()
        if names:
            wanted = [*names, *([] if selection.x_metric is None else [selection.x_metric])]
            for rank in _ranks(lengths, run.id, METRIC_STREAMS, selection.ranks):
                found = await cache.metrics(history, lengths, names=wanted, rank=rank, max_points=max_points)
                x_series = None if selection.x_metric is None else found.get(selection.x_metric)
                for name, columns in _matching(found, names):
                    curves.append(Curve((run.id, rank, name), columns, origin, x_series))
        if usage_names:
            for rank in _ranks(lengths, run.id, (SYSTEM_STREAM,), selection.ranks):
                found = await cache.usage(history, lengths, rank=rank, max_points=max_points)
                for name, columns in _matching(found, usage_names):
                    curves.append(Curve((run.id, rank, name), columns, origin))
        if len(curves) > MAX_SERIES:
            raise SpecError(
                f"a request has at most {MAX_SERIES} series, these names match more",
                hints=("name fewer metrics with `name`, or fewer runs",),
            )
    return curves


def _matching(found: Mapping[str, Columns], names: Sequence[str]) -> list[tuple[str, Columns]]:
    patterns = [compile_name_pattern(name) for name in names if _ALL in name]
    return [
        (name, columns)
        for name, columns in sorted(found.items())
        if name in names or any(pattern.fullmatch(name) for pattern in patterns)
    ]


def _ranks(
    lengths: RunLengths, run: RunId, streams: Sequence[str], ranks: tuple[int, ...] | None
) -> Sequence[int | None]:
    if ranks is None:
        return (None,)
    logged = sorted({key.rank for key in lengths.get(run, {}) if key.name in streams})
    return [rank for rank in logged if not ranks or rank in ranks]

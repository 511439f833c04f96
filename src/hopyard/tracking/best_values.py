"""The best value that a run logged of a metric, read from its curve."""

from __future__ import annotations

from collections.abc import Sequence

from hopyard.domain.ids import RunId
from hopyard.domain.metric_direction import sort_key
from hopyard.errors import IntegrityError, NotFound
from hopyard.interfaces.run_store import RunStore, RunSummary
from hopyard.interfaces.streams import Streams
from hopyard.tracking.leaderboard import LeaderboardResult, ValueSource, default_result
from hopyard.tracking.metrics import read_series
from hopyard.tracking.run_history import load_history

MAX_READ_CURVES = 1000  # of the newest runs with the metric


async def best_results(
    store: RunStore, streams: Streams, runs: Sequence[RunSummary], metric: str, *, higher: bool
) -> dict[RunId, LeaderboardResult]:
    """Returns the best value of each run, with its step. A run without a curve counts with its summary; so do
    runs beyond `MAX_READ_CURVES`, with their last value."""
    results: dict[RunId, LeaderboardResult] = {}
    remaining = MAX_READ_CURVES
    for run in runs:
        result = default_result(run, metric)
        if metric in run.latest and remaining:
            remaining -= 1
            result = await _best_of_curve(store, streams, run.id, metric, higher=higher) or result
        if result is not None:
            results[run.id] = result
    return results


async def _best_of_curve(
    store: RunStore, streams: Streams, run: RunId, metric: str, *, higher: bool
) -> LeaderboardResult | None:
    try:
        history = await load_history(store, streams, run)
        series = (await read_series(streams, history, names=[metric])).get(metric)
    except (NotFound, IntegrityError):
        return None  # deleted meanwhile
    if series is None or not series.values:
        return None
    best = min(range(len(series.values)), key=lambda at: sort_key(series.values[at], higher=higher))
    return LeaderboardResult(series.values[best], ValueSource.BEST, series.steps[best])

"""The best values that runs logged of their metrics."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from hopyard.domain.ids import RunId
from hopyard.domain.metric_direction import sort_key
from hopyard.domain.metric_extremes import Extremes
from hopyard.errors import IntegrityError, NotFound, ServerUnavailable, StorageFull
from hopyard.interfaces.run_store import RunStore, RunSummary
from hopyard.interfaces.streams import Streams
from hopyard.tracking.leaderboard import LeaderboardResult, ValueSource, default_result
from hopyard.tracking.metrics import read_series
from hopyard.tracking.run_history import load_with_evaluations

MAX_READ_CURVES = 1000  # of the newest runs with the metric, of those not read before


class BestValues:
    """The store knows the extremes of most curves. The curve of a run that was resumed, or that is older than
    this knowledge, is read once after its end."""

    def __init__(self, store: RunStore, streams: Streams) -> None:
        self._store, self._streams = store, streams

    async def results(
        self, runs: Sequence[RunSummary], metric: str, *, higher: bool
    ) -> dict[RunId, LeaderboardResult]:
        """Returns the best value of each run, with its step. A run without a curve counts with its summary;
        so do runs beyond `MAX_READ_CURVES`, with their last value."""
        results: dict[RunId, LeaderboardResult] = {}
        remaining = MAX_READ_CURVES
        for run in runs:
            result = default_result(run, metric)
            if metric in run.latest:
                extremes = run.extremes.get(metric)
                if extremes is None and remaining:
                    remaining -= 1
                    extremes = await self._read(run, metric)
                if extremes is not None:
                    step, value = extremes[1] if higher else extremes[0]
                    result = LeaderboardResult(value, ValueSource.BEST, step)
            if result is not None:
                results[run.id] = result
        return results

    async def _read(self, run: RunSummary, metric: str) -> Extremes | None:
        try:
            history = await load_with_evaluations(self._store, self._streams, run.id)
            series = (await read_series(self._streams, history, names=[metric])).get(metric)
        except (NotFound, IntegrityError):
            return None  # deleted meanwhile
        if series is None or not series.values:
            return None
        lowest, highest = (
            min(range(len(series.values)), key=lambda at: sort_key(series.values[at], higher=higher))
            for higher in (False, True)
        )
        extremes = (
            (series.steps[lowest], series.values[lowest]),
            (series.steps[highest], series.values[highest]),
        )
        if history.run.phase.is_final:  # the points of a live run may be newer than its newest stored one
            with suppress(StorageFull, ServerUnavailable):
                await self._store.record_extremes(run.id, metric, extremes, latest=run.latest[metric])
        return extremes

"""The best values that runs logged of their metrics, read from their curves."""

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

MAX_READ_CURVES = 1000  # of the newest runs with the metric, of those not read before
_MAX_KNOWN_CURVES = 100_000

_Extremes = tuple[LeaderboardResult, LeaderboardResult]  # the lowest and the highest value


class BestValues:
    """Reads the curve of a run once, and again only after it has grown."""

    def __init__(self, store: RunStore, streams: Streams) -> None:
        self._store, self._streams = store, streams
        # with the point that was the newest one, the oldest entry first
        self._known: dict[tuple[RunId, str], tuple[tuple[int, float], _Extremes]] = {}

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
                extremes = self._find(run, metric)
                if extremes is None and remaining:
                    remaining -= 1
                    extremes = await self._read(run, metric)
                if extremes is not None:
                    result = extremes[1] if higher else extremes[0]
            if result is not None:
                results[run.id] = result
        return results

    def _find(self, run: RunSummary, metric: str) -> _Extremes | None:
        known = self._known.get((run.id, metric))
        # as texts, since NaN differs from itself
        return known[1] if known is not None and repr(known[0]) == repr(run.latest[metric]) else None

    async def _read(self, run: RunSummary, metric: str) -> _Extremes | None:
        try:
            history = await load_history(self._store, self._streams, run.id)
            series = (await read_series(self._streams, history, names=[metric])).get(metric)
        except (NotFound, IntegrityError):
            return None  # deleted meanwhile
        if series is None or not series.values:
            return None
        positions = [
            min(range(len(series.values)), key=lambda at: sort_key(series.values[at], higher=higher))
            for higher in (False, True)
        ]
        lowest, highest = (
            LeaderboardResult(series.values[at], ValueSource.BEST, series.steps[at]) for at in positions
        )
        if history.run.phase.is_final:  # the points of a live run may be newer than its newest stored one
            self._known.pop((run.id, metric), None)
            self._known[run.id, metric] = run.latest[metric], (lowest, highest)
            if len(self._known) > _MAX_KNOWN_CURVES:
                del self._known[next(iter(self._known))]
        return lowest, highest

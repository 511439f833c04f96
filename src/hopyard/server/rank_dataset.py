"""Ranks the runs on a dataset."""

from __future__ import annotations

from hopyard.domain.dataset import Dataset
from hopyard.domain.ids import RunId
from hopyard.domain.study import Goal
from hopyard.server.services import Services
from hopyard.tracking.best_values import BestValues
from hopyard.tracking.leaderboard import (
    MAX_RANKED_RUNS,
    Leaderboard,
    LeaderboardResult,
    ValueSource,
    choose_metric,
    default_result,
    is_higher_better,
    last_result,
    rank_runs,
)


async def rank_dataset(
    services: Services,
    best_values: BestValues,
    dataset: Dataset,
    *,
    metric: str,
    limit: int,
    value: ValueSource | None = None,
    direction: Goal | None = None,
) -> Leaderboard:
    """Returns the leaderboard of a dataset. metric: "" chooses one. The logged values are read only where
    they matter: they are much larger than the summaries."""
    higher = None if direction is None else direction is Goal.MAX
    runs = await services.runs.list_summaries(
        dataset.name,
        limit=MAX_RANKED_RUNS,
        latest=bool(metric or dataset.metric or value),
        extremes=value is ValueSource.BEST,
    )
    metric = choose_metric(dataset, runs, metric)
    if not metric:
        runs = await services.runs.list_summaries(dataset.name, limit=MAX_RANKED_RUNS, latest=True)
        metric = choose_metric(dataset, runs)
    results: dict[RunId, LeaderboardResult] | None = None
    if value is ValueSource.LAST:
        results = {
            run.id: result
            for run in runs
            if (result := last_result(run, metric) or default_result(run, metric)) is not None
        }
    elif value is ValueSource.BEST:
        results = await best_values.results(runs, metric, higher=is_higher_better(dataset, metric, higher))
    return rank_runs(dataset, runs, metric=metric, higher=higher, results=results, limit=limit)

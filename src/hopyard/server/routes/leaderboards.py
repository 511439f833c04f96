"""Leaderboards of datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import LINE, RequestModel
from hopyard.domain.best_checkpoint import checkpoint_of_value
from hopyard.domain.dataset import Dataset
from hopyard.domain.ids import RunId
from hopyard.domain.metric_values import MetricValue, encode_value
from hopyard.domain.run import Run
from hopyard.domain.study import Goal
from hopyard.errors import NotFound
from hopyard.interfaces.run_store import RunFilter
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.services import Services
from hopyard.tracking.best_values import BestValues
from hopyard.tracking.leaderboard import (
    MAX_RANKED_RUNS,
    Leaderboard,
    LeaderboardResult,
    LeaderboardRow,
    ValueSource,
    choose_metric,
    default_result,
    is_higher_better,
    last_result,
    rank_runs,
)


class BoardQuery(RequestModel):
    metric: Annotated[str, Meta(min_length=1, max_length=1024, pattern=LINE)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    value: (
        Annotated[
            ValueSource,
            Meta(
                description="the value of a run: its summary, else its last logged value (summary), the "
                "last logged value, else its summary (last), or the best logged value (best)"
            ),
        ]
        | None
    ) = None
    direction: Annotated[Goal, Meta(description="which value ranks first")] | None = None


class RowOut(Struct, frozen=True, kw_only=True):
    """source: where the value comes from: `summary`, `last` or `best`. step: of the logged value; null for a
    summary. checkpoint_step: of the checkpoint with this value, else of the best one by this metric, else of
    the newest one; null if there is none. Values that are not finite are
    `"NaN"`, `"Infinity"` and `"-Infinity"`."""

    rank: int
    run: str
    name: str
    label: str
    user: str
    value: MetricValue
    source: ValueSource
    step: int | None
    summary: Mapping[str, MetricValue]
    params: Mapping[str, str | int | float | bool | None]
    version: int
    submitted_at: datetime
    checkpoint_step: int | None


class BoardOut(Struct, frozen=True):
    """metric: "" while no run has a result."""

    metric: str
    higher_is_better: bool
    rows: list[RowOut]


def leaderboard_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    best_values = BestValues(services.runs, services.streams)

    async def board(request: ApiRequest[BoardQuery, Empty]) -> BoardOut:
        """Rank the runs on a dataset, best first: by the requested metric, the metric of the dataset, the
        metric that most runs summarise, or the one that most runs log."""
        name = request.path["name"]
        dataset = await services.datasets.find(name)
        if dataset is None:
            await services.datasets.versions(name, limit=1)  # raises NotFound with close names
            raise NotFound(f"there is no dataset `{name}`")
        leaderboard = await _rank(services, best_values, dataset, request.query)
        ids = [row.run.id for row in leaderboard.rows]
        runs_by_id = {
            run.id: run
            for run in await services.runs.list(RunFilter(ids=frozenset(ids), limit=len(ids), brief=True))
        }
        steps = await _checkpoint_steps(services, leaderboard)
        # runs that were deleted meanwhile are skipped
        rows = [
            _to_row_out(row, runs_by_id[row.run.id], name, steps.get(row.run.id))
            for row in leaderboard.rows
            if row.run.id in runs_by_id
        ]
        return BoardOut(leaderboard.metric, leaderboard.higher_is_better, rows)

    return [Endpoint("GET", "/datasets/{name}/board", board, BoardQuery, returns=BoardOut)]


async def _rank(
    services: Services, best_values: BestValues, dataset: Dataset, query: BoardQuery
) -> Leaderboard:
    """Reads the logged values only where they matter: they are much larger than the summaries."""
    metric, higher = query.metric or "", None if query.direction is None else query.direction is Goal.MAX
    runs = await services.runs.list_summaries(
        dataset.name,
        limit=MAX_RANKED_RUNS,
        latest=bool(metric or dataset.metric or query.value),
        extremes=query.value is ValueSource.BEST,
    )
    metric = choose_metric(dataset, runs, metric)
    if not metric:
        runs = await services.runs.list_summaries(dataset.name, limit=MAX_RANKED_RUNS, latest=True)
        metric = choose_metric(dataset, runs)
    results: dict[RunId, LeaderboardResult] | None = None
    if query.value is ValueSource.LAST:
        results = {
            run.id: result
            for run in runs
            if (result := last_result(run, metric) or default_result(run, metric)) is not None
        }
    elif query.value is ValueSource.BEST:
        results = await best_values.results(runs, metric, higher=is_higher_better(dataset, metric, higher))
    return rank_runs(dataset, runs, metric=metric, higher=higher, results=results, limit=query.limit)


async def _checkpoint_steps(services: Services, leaderboard: Leaderboard) -> dict[RunId, int]:
    steps: dict[RunId, int] = {}
    saved = await services.runs.checkpoints_of([row.run.id for row in leaderboard.rows])
    for row in leaderboard.rows:
        checkpoint = checkpoint_of_value(
            saved.get(row.run.id, ()),
            leaderboard.metric,
            row.value,
            step=row.result.step,
            higher=leaderboard.higher_is_better,
        )
        if checkpoint is not None:
            steps[row.run.id] = checkpoint.step
    return steps


def _to_row_out(row: LeaderboardRow, run: Run, dataset: str, checkpoint_step: int | None) -> RowOut:
    return RowOut(
        rank=row.rank,
        run=run.id,
        name=str(run.name),
        label=run.spec.label,
        user=run.name.user,
        value=encode_value(row.value),
        source=row.result.source,
        step=row.result.step,
        summary={key: encode_value(value) for key, value in run.summary.items()},
        params=run.params,
        version=next((ref.version for ref in run.spec.datasets if ref.name == dataset), 0),
        submitted_at=run.submitted_at,
        checkpoint_step=checkpoint_step,
    )

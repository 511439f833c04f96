"""Leaderboards of datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import LINE, RequestModel
from hopyard.domain.best_checkpoint import checkpoint_of_value
from hopyard.domain.ids import RunId
from hopyard.domain.metric_values import MetricValue, encode_value
from hopyard.domain.run import Run
from hopyard.domain.study import Goal
from hopyard.errors import NotFound
from hopyard.interfaces.run_store import RunFilter
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.rank_dataset import rank_dataset
from hopyard.server.services import Services
from hopyard.tracking.best_values import BestValues
from hopyard.tracking.leaderboard import (
    Leaderboard,
    LeaderboardRow,
    ValueSource,
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


class RecordOut(Struct, frozen=True):
    """A run that was the best one when it was submitted."""

    run: str
    name: str
    user: str
    value: MetricValue
    submitted_at: datetime


class BoardOut(Struct, frozen=True):
    """metric: "" while no run has a result. ranked: the number of runs with a result, of which `rows` has the
    best `limit`. records: the runs that were the best ones when they were submitted, oldest first; the newest
    thousand of them."""

    metric: str
    higher_is_better: bool
    rows: list[RowOut]
    ranked: int
    records: list[RecordOut]


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
        query = request.query
        leaderboard = await rank_dataset(
            services,
            best_values,
            dataset,
            metric=query.metric or "",
            limit=query.limit,
            value=query.value,
            direction=query.direction,
        )
        ids = [row.run.id for row in (*leaderboard.rows, *leaderboard.records)]
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
        records = [
            _to_record_out(row, runs_by_id[row.run.id])
            for row in leaderboard.records
            if row.run.id in runs_by_id
        ]
        return BoardOut(leaderboard.metric, leaderboard.higher_is_better, rows, leaderboard.ranked, records)

    return [Endpoint("GET", "/datasets/{name}/board", board, BoardQuery, returns=BoardOut)]


def _to_record_out(row: LeaderboardRow, run: Run) -> RecordOut:
    return RecordOut(run.id, str(run.name), run.name.user, encode_value(row.value), run.submitted_at)


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

"""Leaderboards of datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import LINE, RequestModel
from hopyard.domain.run import Run
from hopyard.errors import NotFound
from hopyard.interfaces.run_store import RunFilter
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.services import Services
from hopyard.tracking.leaderboard import MAX_RANKED_RUNS, LeaderboardRow, rank_runs


class BoardQuery(RequestModel):
    metric: Annotated[str, Meta(min_length=1, max_length=1024, pattern=LINE)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50


class RowOut(Struct, frozen=True, kw_only=True):
    """checkpoint_step: of the newest checkpoint; null if there is none. A value that is not a finite number
    is null."""

    rank: int
    run: str
    name: str
    label: str
    user: str
    value: float | None
    summary: Mapping[str, float | None]
    params: Mapping[str, str | int | float | bool | None]
    version: int
    submitted_at: datetime
    checkpoint_step: int | None


class BoardOut(Struct, frozen=True):
    """metric: "" while no run has a summary."""

    metric: str
    higher_is_better: bool
    rows: list[RowOut]


def leaderboard_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def board(request: ApiRequest[BoardQuery, Empty]) -> BoardOut:
        """Rank the runs on a dataset, best first: by the requested metric, the metric of the dataset, or the
        metric that most runs summarise."""
        name = request.path["name"]
        dataset = await services.datasets.find(name)
        if dataset is None:
            await services.datasets.versions(name, limit=1)  # raises NotFound with close names
            raise NotFound(f"there is no dataset `{name}`")
        summaries = await services.runs.list_summaries(name, limit=MAX_RANKED_RUNS)
        leaderboard = rank_runs(
            dataset, summaries, metric=request.query.metric or "", limit=request.query.limit
        )
        ids = [row.run.id for row in leaderboard.rows]
        runs_by_id = {
            run.id: run
            for run in await services.runs.list(RunFilter(ids=frozenset(ids), limit=len(ids), brief=True))
        }
        steps = await services.runs.newest_steps(ids)
        # runs that were deleted meanwhile are skipped
        rows = [
            _to_row_out(row, runs_by_id[row.run.id], name, steps.get(row.run.id))
            for row in leaderboard.rows
            if row.run.id in runs_by_id
        ]
        return BoardOut(leaderboard.metric, leaderboard.higher_is_better, rows)

    return [Endpoint("GET", "/datasets/{name}/board", board, BoardQuery, returns=BoardOut)]


def _to_row_out(row: LeaderboardRow, run: Run, dataset: str, newest_step: int | None) -> RowOut:
    return RowOut(
        rank=row.rank,
        run=run.id,
        name=str(run.name),
        label=run.spec.label,
        user=run.name.user,
        value=row.value,
        summary=run.summary,
        params=run.params,
        version=next((ref.version for ref in run.spec.datasets if ref.name == dataset), 0),
        submitted_at=run.submitted_at,
        checkpoint_step=newest_step,
    )

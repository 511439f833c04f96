"""Reads many runs with few queries."""

from __future__ import annotations

from collections.abc import Sequence

from hopyard.domain.ids import RunId
from hopyard.domain.run import Run
from hopyard.interfaces.run_store import RunFilter, RunStore

_BATCH_SIZE = 200  # runs per query


async def read_runs(runs: RunStore, ids: Sequence[RunId], *, studies_only: bool = False) -> dict[RunId, Run]:
    """Returns the runs that exist among `ids`, by id. studies_only: returns only studies."""
    runs_by_id: dict[RunId, Run] = {}
    for start in range(0, len(ids), _BATCH_SIZE):
        batch = frozenset(ids[start : start + _BATCH_SIZE])
        runs_by_id.update(
            (run.id, run)
            for run in await runs.list(RunFilter(ids=batch, limit=len(batch), studies=studies_only))
        )
    return runs_by_id

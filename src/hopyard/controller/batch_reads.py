"""Reading many runs with few queries."""

from __future__ import annotations

from collections.abc import Sequence

from hopyard.domain.ids import RunId
from hopyard.domain.run import Run
from hopyard.interfaces.run_store import RunFilter, RunStore

_BATCH_SIZE = 200  # in one query


async def read_runs(runs: RunStore, ids: Sequence[RunId], *, studies_only: bool = False) -> dict[RunId, Run]:
    """Those of these that there are. studies_only: only those that are studies."""
    found: dict[RunId, Run] = {}
    for at in range(0, len(ids), _BATCH_SIZE):
        some = frozenset(ids[at : at + _BATCH_SIZE])
        found.update(
            (run.id, run)
            for run in await runs.list(RunFilter(ids=some, limit=len(some), studies=studies_only))
        )
    return found

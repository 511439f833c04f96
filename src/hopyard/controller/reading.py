"""Reading many runs with few queries."""

from __future__ import annotations

from collections.abc import Sequence

from hopyard.domain.ids import RunId
from hopyard.domain.run import Run
from hopyard.interfaces.run_store import RunFilter, RunStore

_AT_ONCE = 200  # in one query


async def read_runs(runs: RunStore, ids: Sequence[RunId], *, studies: bool = False) -> dict[RunId, Run]:
    """Those of these that there are. studies: only those that are studies."""
    found: dict[RunId, Run] = {}
    for at in range(0, len(ids), _AT_ONCE):
        some = frozenset(ids[at : at + _AT_ONCE])
        found.update(
            (run.id, run) for run in await runs.list(RunFilter(ids=some, limit=len(some), studies=studies))
        )
    return found

"""The Visdom server of a user: the live run of `hop visdom`, or the newest one."""

from __future__ import annotations

from hopyard.domain.run import Run, RunPhase
from hopyard.domain.run_port import VISDOM_NAME, VISDOM_PORT
from hopyard.interfaces.run_store import RunFilter, RunStore

_LIVE_PHASES = frozenset(phase for phase in RunPhase if not phase.is_final)
_MAX_LISTED = 10  # other runs may have the same project and label


async def find_visdom_run(runs: RunStore, user: str) -> Run | None:
    """Returns the live run that serves Visdom for this user, first one that runs already; None without
    one."""
    found = await runs.list(
        RunFilter(phases=_LIVE_PHASES, user=user, project=VISDOM_NAME, label=VISDOM_NAME, limit=_MAX_LISTED)
    )
    live = [run for run in found if VISDOM_PORT[0] in run.spec.ports]
    return next((run for run in live if run.phase is RunPhase.RUNNING), next(iter(live), None))

"""Loads a run with everything that readers of its streams need: attempts, checkpoints, and the resulting
view."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.ids import RunId
from hopyard.domain.run import Run
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.streams import Streams
from hopyard.tracking.gang_rollback import cut_all_ranks
from hopyard.tracking.process_restarts import may_restart, with_restarts
from hopyard.tracking.rollback import VisibleStreams, visible_streams


@dataclass(frozen=True, slots=True)
class RunHistory:
    run: Run
    visible_streams: VisibleStreams


async def load_history(runs: RunStore, streams: Streams, run_id: RunId) -> RunHistory:
    """Raises NotFound."""
    run = await runs.get(run_id)
    attempts = await runs.attempts(run_id)
    has_several_attempts = len(attempts) > 1  # with one attempt nothing can be hidden
    view = visible_streams(
        run, attempts, await runs.checkpoints(run_id, damaged=True) if has_several_attempts else ()
    )
    if view.resume_points and run.spec.size > 1:
        view = await cut_all_ranks(streams, view, size=run.spec.size)
    if may_restart(run.spec):
        view = await with_restarts(streams, view, run.spec)
    return RunHistory(run, view)

"""A run with all that reading its streams needs: attempts, checkpoints, and the view that follows from
them."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.ids import RunId
from hopyard.domain.run import Run
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.streams import Streams
from hopyard.tracking.turns import cut_together
from hopyard.tracking.view import View, visible


@dataclass(frozen=True, slots=True)
class Past:
    run: Run
    view: View


async def look_back(runs: RunStore, streams: Streams, run_id: RunId) -> Past:
    """Raises NotFound."""
    run = await runs.get(run_id)
    attempts = await runs.attempts(run_id)
    several = len(attempts) > 1  # with one attempt nothing can be hidden
    view = visible(run, attempts, await runs.checkpoints(run_id, damaged=True) if several else ())
    if view.turned and run.spec.size > 1:
        view = await cut_together(streams, view, size=run.spec.size)
    return Past(run, view)

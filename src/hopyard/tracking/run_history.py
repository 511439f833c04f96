"""Loads a run with everything that readers of its streams need: attempts, checkpoints, and the resulting
view."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from hopyard.domain.evaluation import evaluator_of_sentence
from hopyard.domain.ids import RunId
from hopyard.domain.run import Run, RunEventKind
from hopyard.errors import NotFound
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.streams import Streams
from hopyard.tracking.gang_rollback import cut_all_ranks
from hopyard.tracking.process_restarts import may_restart, with_restarts
from hopyard.tracking.rollback import VisibleStreams, visible_streams


@dataclass(frozen=True, slots=True)
class RunHistory:
    """evaluations: the histories of the runs that evaluate the checkpoints of this run, oldest first."""

    run: Run
    visible_streams: VisibleStreams
    evaluations: tuple[RunHistory, ...] = ()


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


async def load_with_evaluations(runs: RunStore, streams: Streams, run_id: RunId) -> RunHistory:
    """Returns the history with those of the runs that evaluate it. Raises NotFound."""
    history = await load_history(runs, streams, run_id)
    found: list[RunHistory] = []
    for evaluator in await find_evaluators(runs, run_id):
        with suppress(NotFound):  # removed
            found.append(await load_history(runs, streams, evaluator))
    return replace(history, evaluations=tuple(found))


async def find_evaluators(runs: RunStore, run: RunId) -> list[RunId]:
    """Returns the runs that evaluate the checkpoints of this run, oldest first. Some may be removed."""
    return [
        evaluator_of_sentence(event.detail)
        for event in await runs.events(run)
        if event.kind is RunEventKind.EVALUATION
    ]

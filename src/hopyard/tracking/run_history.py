"""Loads a run with everything that readers of its streams need: attempts, checkpoints, and the resulting
view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.evaluation import evaluator_of_sentence
from hopyard.domain.ids import RunId
from hopyard.domain.run import Attempt, Run, RunEventKind
from hopyard.errors import NotFound
from hopyard.interfaces.run_store import RunFilter, RunStore
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
    return await _load_history_of(runs, streams, await runs.get(run_id))


async def _load_history_of(runs: RunStore, streams: Streams, run: Run) -> RunHistory:
    has_several_attempts = run.attempt is not None and run.attempt.number > 1
    attempts: Sequence[Attempt] = () if run.attempt is None else (run.attempt,)
    checkpoints: Sequence[Checkpoint] = ()
    if has_several_attempts:  # with one attempt nothing can be hidden
        attempts = await runs.attempts(run.id)
        checkpoints = await runs.checkpoints(run.id, damaged=True)
    view = visible_streams(run, attempts, checkpoints)
    if view.resume_points and run.spec.size > 1:
        view = await cut_all_ranks(streams, view, size=run.spec.size)
    if may_restart(run.spec):
        view = await with_restarts(streams, view, run.spec)
    return RunHistory(run, view)


async def load_with_evaluations(runs: RunStore, streams: Streams, run_id: RunId) -> RunHistory:
    """Returns the history with those of the runs that evaluate it. Raises NotFound."""
    history = await load_history(runs, streams, run_id)
    return (await _with_evaluations(runs, streams, [history]))[0]


async def load_histories(
    runs: RunStore, streams: Streams, run_ids: Sequence[RunId]
) -> Mapping[RunId, RunHistory]:
    """Returns the histories of the runs that exist, each as `load_with_evaluations` does."""
    found = await runs.list(RunFilter(ids=frozenset(run_ids), limit=len(run_ids))) if run_ids else ()
    histories: list[RunHistory] = []
    for run in found:
        with suppress(NotFound):  # removed meanwhile
            histories.append(await _load_history_of(runs, streams, run))
    return {history.run.id: history for history in await _with_evaluations(runs, streams, histories)}


async def _with_evaluations(
    runs: RunStore, streams: Streams, histories: Sequence[RunHistory]
) -> list[RunHistory]:
    events = await runs.events_of([history.run.id for history in histories], RunEventKind.EVALUATION)
    completed: list[RunHistory] = []
    for history in histories:
        evaluations: list[RunHistory] = []
        for event in events.get(history.run.id, ()):
            with suppress(NotFound):  # removed
                evaluations.append(await load_history(runs, streams, evaluator_of_sentence(event.detail)))
        completed.append(replace(history, evaluations=tuple(evaluations)))
    return completed


async def find_evaluators(runs: RunStore, run: RunId) -> list[RunId]:
    """Returns the runs that evaluate the checkpoints of this run, oldest first. Some may be removed."""
    events = await runs.events_of([run], RunEventKind.EVALUATION)
    return [evaluator_of_sentence(event.detail) for event in events.get(run, ())]

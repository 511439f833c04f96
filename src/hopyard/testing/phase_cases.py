"""Cases of phases: only the changes in TRANSITIONS happen, for every action in every phase."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import pytest

from hopyard.domain.attempt import AttemptPhase, Exit, ExitKind
from hopyard.domain.command import CommandKind, CommandResult, CommandState
from hopyard.domain.ids import GangId, RunId, attempt_id
from hopyard.domain.run import TRANSITIONS, RunPhase
from hopyard.errors import HopyardError
from hopyard.testing.stores import (
    ClusterStores,
    apply_placements,
    apply_preemption,
    exited_status,
    make_node,
    make_placement,
    pending_gang,
    preparing_status,
    record_observation,
    running_status,
    start_run,
    submit_run,
    time_at,
)

_DONE = Exit(ExitKind.EXIT_CODE, 0, "finished")


async def _run_in_phase(stores: ClusterStores, phase: RunPhase) -> RunId:
    """Returns a run that has reached this phase in the shortest way."""
    run = (await submit_run(stores)).id
    if phase in (RunPhase.QUEUED, RunPhase.CANCELLED):
        if phase is RunPhase.CANCELLED:
            await stores.cluster.request_stop(run, now=time_at(1))
        return run
    attempt = await start_run(stores, run)
    if phase is not RunPhase.STARTING:
        await stores.cluster.record_status(running_status(attempt), now=time_at(1))
    if phase is RunPhase.PAUSED:
        await stores.commands.create_command(run, CommandKind.PAUSE, {}, user="alice", now=time_at(1))
        answer = CommandResult(CommandState.APPLIED, 1, "paused", time_at(1))
        await stores.commands.record_command_result(run, 1, answer, attempt=attempt)
    if phase is RunPhase.STOPPING:
        await stores.cluster.request_stop(run, now=time_at(1))
    if phase.is_final:
        await stores.cluster.record_status(
            exited_status(attempt, code=int(phase is RunPhase.FAILED)), now=time_at(1)
        )
    return run


async def _try_to_place(stores: ClusterStores, run: RunId) -> None:
    """Applies a plan that takes the run for a waiting one."""
    waiting = await submit_run(stores)
    other = pending_gang(await stores.cluster.snapshot(now=time_at(2)), waiting.id)
    await apply_placements(stores, make_placement(replace(other, id=GangId(run)), "n1"), seconds=2)


_ACTIONS: Mapping[str, Callable[[ClusterStores, RunId], Awaitable[object]]] = {
    "placed": _try_to_place,
    "preparing": lambda stores, run: stores.cluster.record_status(
        preparing_status(attempt_id(run, 1)), now=time_at(2)
    ),
    "running": lambda stores, run: stores.cluster.record_status(
        running_status(attempt_id(run, 1)), now=time_at(2)
    ),
    "lost": lambda stores, _: record_observation(stores, nodes=[make_node(cpus=64)], seconds=2),
    "not launched": lambda stores, run: stores.cluster.fail_launch(attempt_id(run, 1), "no", now=time_at(2)),
    "stopped": lambda stores, run: stores.cluster.request_stop(run, now=time_at(2)),
    "preempted": lambda stores, run: stores.cluster.request_preempt(run, "room", now=time_at(2)),
    "preempted by a plan": lambda stores, run: apply_preemption(stores, attempt_id(run, 1), seconds=2),
    "finished offline": lambda stores, run: stores.runs.finish_offline(
        run, AttemptPhase.SUCCEEDED, _DONE, started_at=time_at(0), ended_at=time_at(1)
    ),
    **{
        f"ended as {kind} {code}": lambda stores, run, kind=kind, code=code: stores.cluster.record_status(  # type: ignore[misc]
            exited_status(attempt_id(run, 1), code=code, kind=kind), now=time_at(2)
        )
        for kind in ExitKind
        for code in (0, 1)
    },
}


class PhaseCases:
    """Every phase, and all actions on a run in it."""

    @pytest.mark.parametrize("phase", RunPhase)
    async def test_phase_changes_follow_transitions(self, stores: ClusterStores, phase: RunPhase) -> None:
        await record_observation(stores, nodes=[make_node(cpus=64)])
        for name, act in _ACTIONS.items():
            run = await _run_in_phase(stores, phase)
            before = await stores.runs.get(run)
            assert before.phase is phase
            with suppress(HopyardError):
                await act(stores, run)
            after = await stores.runs.get(run)
            assert after.phase is phase or after.phase in TRANSITIONS[phase], (
                f"{phase} became {after.phase}: {name}"
            )
            if phase.is_final:
                assert after == before, name

"""Changes of phase: only those of the table, whatever is done to a run in whatever phase."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import pytest

from hopyard.domain.attempt import AttemptPhase, Exit, ExitKind
from hopyard.domain.ids import GangId, RunId, attempt_id
from hopyard.domain.run import TRANSITIONS, RunPhase
from hopyard.errors import HopyardError
from hopyard.testing.stores import (
    ClusterStores,
    apply,
    at,
    exited,
    gang_of,
    node,
    place,
    preempt,
    preparing,
    running,
    see,
    start,
    submit,
)

_DONE = Exit(ExitKind.EXIT_CODE, 0, "finished")


async def _in_phase(stores: ClusterStores, phase: RunPhase) -> RunId:
    """A run that has come to this phase on its shortest way."""
    run = (await submit(stores)).id
    if phase in (RunPhase.QUEUED, RunPhase.CANCELLED):
        if phase is RunPhase.CANCELLED:
            await stores.cluster.request_stop(run, now=at(1))
        return run
    attempt = await start(stores, run)
    if phase is not RunPhase.STARTING:
        await stores.cluster.record_status(running(attempt), now=at(1))
    if phase is RunPhase.STOPPING:
        await stores.cluster.request_stop(run, now=at(1))
    if phase.final:
        await stores.cluster.record_status(exited(attempt, code=int(phase is RunPhase.FAILED)), now=at(1))
    return run


async def _place(stores: ClusterStores, run: RunId) -> None:
    """By a plan that took it for one that waits."""
    waiting = await submit(stores)
    other = gang_of(await stores.cluster.snapshot(now=at(2)), waiting.id)
    await apply(stores, place(replace(other, id=GangId(run)), "n1"), seconds=2)


_DEEDS: Mapping[str, Callable[[ClusterStores, RunId], Awaitable[object]]] = {
    "placed": _place,
    "preparing": lambda stores, run: stores.cluster.record_status(preparing(attempt_id(run, 1)), now=at(2)),
    "running": lambda stores, run: stores.cluster.record_status(running(attempt_id(run, 1)), now=at(2)),
    "lost": lambda stores, _: see(stores, nodes=[node(cpus=64)], seconds=2),
    "not launched": lambda stores, run: stores.cluster.fail_launch(attempt_id(run, 1), "no", now=at(2)),
    "stopped": lambda stores, run: stores.cluster.request_stop(run, now=at(2)),
    "preempted": lambda stores, run: stores.cluster.request_preempt(run, "room", now=at(2)),
    "preempted by a plan": lambda stores, run: preempt(stores, attempt_id(run, 1), seconds=2),
    "finished offline": lambda stores, run: stores.runs.finish_offline(
        run, AttemptPhase.SUCCEEDED, _DONE, started_at=at(0), ended_at=at(1)
    ),
    **{
        f"ended as {kind} {code}": lambda stores, run, kind=kind, code=code: stores.cluster.record_status(  # type: ignore[misc]
            exited(attempt_id(run, 1), code=code, kind=kind), now=at(2)
        )
        for kind in ExitKind
        for code in (0, 1)
    },
}


class PhaseCases:
    """Every phase, and all that may happen to a run in it."""

    @pytest.mark.parametrize("phase", RunPhase)
    async def test_a_phase_changes_as_the_table_says(self, stores: ClusterStores, phase: RunPhase) -> None:
        await see(stores, nodes=[node(cpus=64)])
        for deed, do in _DEEDS.items():
            run = await _in_phase(stores, phase)
            before = await stores.runs.get(run)
            assert before.phase is phase
            with suppress(HopyardError):
                await do(stores, run)
            after = await stores.runs.get(run)
            assert after.phase is phase or after.phase in TRANSITIONS[phase], (
                f"{phase} became {after.phase}: {deed}"
            )
            if phase.final:
                assert after == before, deed

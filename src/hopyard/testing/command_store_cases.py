"""Cases of every CommandStore."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from hopyard.domain.attempt import ExitKind
from hopyard.domain.command import CommandKind, CommandResult, CommandState
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.run import RunEvent, RunEventKind, RunPhase
from hopyard.errors import Conflict, NotFound
from hopyard.interfaces.run_store import RunFilter
from hopyard.testing.stores import (
    ClusterStores,
    exited_status,
    running_status,
    start_run,
    started_run,
    time_at,
)

MISSING_RUN = RunId("r" + "z" * 26)


def answer(text: str, at: datetime, *, step: int = 7, **changes: tuple[float, float]) -> CommandResult:
    return CommandResult(CommandState.APPLIED, step, text, at, changes)


async def running_run(stores: ClusterStores, **spec: Any) -> tuple[RunId, AttemptId]:
    run, attempt = await started_run(stores, **spec)
    await stores.cluster.record_status(running_status(attempt), now=time_at(1))
    return run, attempt


class CommandCases:
    async def test_commands_are_numbered_per_run(self, stores: ClusterStores) -> None:
        run, _ = await running_run(stores)
        first = await stores.commands.create_command(
            run, CommandKind.SET, {"lr": 0.1, "name": None}, user="alice", now=time_at(2)
        )
        second = await stores.commands.create_command(run, CommandKind.PAUSE, {}, user="bob", now=time_at(3))
        assert (first.number, second.number) == (1, 2)
        assert list(await stores.commands.commands(run)) == [first, second]
        assert {run: list(each) for run, each in (await stores.commands.pending_commands()).items()} == {
            run: [first, second]
        }
        assert (first.arguments, first.state, second.created_at) == (
            {"lr": 0.1, "name": None},
            CommandState.PENDING,
            time_at(3),
        )

    async def test_ended_and_unknown_runs_take_no_commands(self, stores: ClusterStores) -> None:
        run, attempt = await running_run(stores)
        await stores.commands.create_command(run, CommandKind.PAUSE, {}, user="alice", now=time_at(2))
        await stores.cluster.record_status(exited_status(attempt), now=time_at(3))
        assert await stores.commands.pending_commands() == {}
        with pytest.raises(Conflict, match="has ended"):
            await stores.commands.create_command(run, CommandKind.PAUSE, {}, user="alice", now=time_at(4))
        with pytest.raises(NotFound):
            await stores.commands.create_command(
                MISSING_RUN, CommandKind.PAUSE, {}, user="alice", now=time_at(4)
            )
        assert list(await stores.commands.commands(MISSING_RUN)) == []

    async def test_answer_is_recorded_once_with_its_event(self, stores: ClusterStores) -> None:
        run, attempt = await running_run(stores)
        await stores.commands.create_command(run, CommandKind.SET, {"lr": 0.1}, user="alice", now=time_at(2))
        for at in (time_at(3), time_at(4)):
            answered = await stores.commands.record_command_result(
                run, 1, answer("lr 0.2 -> 0.1", at, lr=(0.2, 0.1)), attempt=attempt
            )
            assert answered is not None
            assert (answered.state, answered.step, answered.answered_at, answered.attempt) == (
                CommandState.APPLIED,
                7,
                time_at(3),
                attempt,
            )
            assert answered.changes == {"lr": (0.2, 0.1)}
        assert list(await stores.commands.commands(run)) == [answered]
        (event,) = await stores.runs.events(run)
        assert (event.kind, event.detail) == (RunEventKind.CONTROL, "alice set lr 0.2 -> 0.1 at step 7")
        assert (
            await stores.commands.record_command_result(run, 9, answer("", time_at(5)), attempt=attempt)
            is None
        )

    async def test_pause_shows_as_phase_until_resumed(self, stores: ClusterStores) -> None:
        run, attempt = await running_run(stores)
        for number, (kind, phase) in enumerate(
            ((CommandKind.PAUSE, RunPhase.PAUSED), (CommandKind.RESUME, RunPhase.RUNNING)), 1
        ):
            await stores.commands.create_command(run, kind, {}, user="alice", now=time_at(2))
            await stores.commands.record_command_result(
                run, number, answer("done", time_at(3)), attempt=attempt
            )
            found = await stores.runs.get(run)
            assert (found.phase, found.paused_at) == (
                phase,
                time_at(3) if phase is RunPhase.PAUSED else None,
            )
            for asked in (RunPhase.PAUSED, RunPhase.RUNNING):
                page = await stores.runs.list(RunFilter(phases=frozenset({asked})))
                assert [each.id for each in page] == ([run] if asked is phase else [])
            assert await stores.runs.count_by_phase() == {phase: 1}

    async def test_run_of_ended_attempt_is_not_paused(self, stores: ClusterStores) -> None:
        run, attempt = await running_run(stores)
        await stores.commands.create_command(run, CommandKind.PAUSE, {}, user="alice", now=time_at(2))
        await stores.commands.record_command_result(run, 1, answer("paused", time_at(3)), attempt=attempt)
        await stores.cluster.record_status(exited_status(attempt), now=time_at(4))
        ended = await stores.runs.get(run)
        assert (ended.phase, ended.paused_at) == (RunPhase.SUCCEEDED, None)

    async def test_live_run_is_held_when_it_returns_to_the_queue(self, stores: ClusterStores) -> None:
        run, attempt = await running_run(stores)
        live = await stores.runs.get(run)
        preempted = await stores.cluster.hold_and_preempt(run, "alice", "paused by alice", now=time_at(2))
        assert (list(preempted.changed), (await stores.runs.get(run)).held_by) == ([run], None)
        # neither a second preemption nor a change of the live run affects the hold
        assert not (await stores.cluster.hold_and_preempt(run, "bob", "again", now=time_at(2))).changed
        await stores.cluster.hold_and_preempt(run, "alice", "again", now=time_at(2))
        note = RunEvent(time_at(2), RunEventKind.CHANGED, "by alice: note")
        await stores.cluster.update_run(live, replace(live, note="slow"), note)
        await stores.cluster.fail_launch(attempt, "its processes are gone", now=time_at(3))
        held = await stores.runs.get(run)
        assert (held.phase, held.held_by) == (RunPhase.QUEUED, "alice")
        assert (await stores.cluster.snapshot(now=time_at(100))).pending == ()
        event = (await stores.runs.events(run))[-1]
        await stores.cluster.update_run(held, replace(held, held_by=None), event)
        assert await start_run(stores, run, seconds=100)

    async def test_hold_of_live_run_is_withdrawn(self, stores: ClusterStores) -> None:
        run, attempt = await running_run(stores)
        assert not await stores.cluster.withdraw_hold(run)
        await stores.cluster.hold_and_preempt(run, "alice", "paused by alice", now=time_at(2))
        assert await stores.cluster.withdraw_hold(run)
        await stores.cluster.fail_launch(attempt, "its processes are gone", now=time_at(3))
        assert (await stores.runs.get(run)).held_by is None
        assert not await stores.cluster.withdraw_hold(run)
        with pytest.raises(Conflict, match="waits in the queue"):
            await stores.cluster.hold_and_preempt(run, "alice", "paused by alice", now=time_at(4))

    async def test_run_that_is_being_stopped_is_not_held(self, stores: ClusterStores) -> None:
        run, attempt = await running_run(stores)
        await stores.cluster.request_stop(run, now=time_at(2))
        with pytest.raises(Conflict, match="is being stopped"):
            await stores.cluster.hold_and_preempt(run, "alice", "paused by alice", now=time_at(3))
        await stores.cluster.record_status(exited_status(attempt, kind=ExitKind.STOPPED), now=time_at(4))
        with pytest.raises(Conflict, match="has ended"):
            await stores.cluster.hold_and_preempt(run, "alice", "paused by alice", now=time_at(5))

    async def test_next_attempt_is_paused_only_after_its_script_is(self, stores: ClusterStores) -> None:
        run, attempt = await running_run(stores)
        await stores.commands.create_command(run, CommandKind.PAUSE, {}, user="alice", now=time_at(2))
        await stores.commands.record_command_result(run, 1, answer("paused", time_at(3)), attempt=attempt)
        await stores.cluster.fail_launch(attempt, "its processes are gone", now=time_at(4))
        assert (await stores.runs.get(run)).phase is RunPhase.QUEUED
        second = await start_run(stores, run, seconds=100)
        await stores.cluster.record_status(running_status(second), now=time_at(101))
        assert (await stores.runs.get(run)).phase is RunPhase.RUNNING
        again = answer("paused", time_at(102))
        await stores.commands.record_command_result(run, 1, again, attempt=second)
        assert (await stores.runs.get(run)).paused_at == time_at(102)

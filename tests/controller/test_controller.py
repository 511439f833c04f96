"""The loops, one situation at a time: real SQL store, scripted engine, manual clock."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hopyard.controller import scheduling_loop
from hopyard.controller.controller import CYCLE_PAUSE_FACTOR
from hopyard.domain.attempt import Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import HoldReason, Plan, Snapshot
from hopyard.domain.ids import AttemptId, NodeId, ReservationId, RunId, attempt_id, split_attempt
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.domain.run import RoleSpec, RunEventKind, RunPhase, RunSpec
from hopyard.interfaces.run_store import NewRun
from hopyard.scheduler.cycle.planner import Planner
from hopyard.stores.sql.reservations import SqlReservationStore
from hopyard.testing.fake_engine import FakeEngine, ReplicaScript
from tests.controller.world import NODES, Gated, World, play

FAILED = Exit(ExitKind.EXIT_CODE, 3, "exit code 3")
LOST = Exit(ExitKind.LOST, 1, "its processes vanished")


def test_a_run_is_placed_launched_and_recorded(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.start()
        await world.settle()
        run = await world.submit(gpus=2)
        await world.settle()
        assert world.engine.started_attempts == [attempt_id(run, 1)]  # at once: no time has passed
        launch = world.engine.launches[attempt_id(run, 1)]
        assert launch.replicas[0].token == f"token-of-{run}.1"
        assert launch.placement.assignments[0].gpus == (0, 1)
        await world.until(lambda: world.final(run))
        found = await world.runs.get(run)
        assert (found.phase, found.exit.reason) == (RunPhase.SUCCEEDED, "finished")
        await world.advance(timedelta(seconds=2))
        assert world.engine.forgotten == [attempt_id(run, 1)]
        assert world.ended == [run]

    play(tmp_path, scene)


def test_nothing_is_observed_while_nothing_lives(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.start()
        await world.settle()
        run = await world.submit()
        await world.until(lambda: world.final(run))
        await world.advance(timedelta(seconds=3))
        assert world.clock.next_at() is None  # nobody sleeps, so nothing will ever wake by itself
        again = await world.submit()
        await world.until(lambda: world.final(again))

    play(tmp_path, scene)


def test_what_does_not_fit_waits_and_follows(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.start()
        await world.settle()
        first, second = await world.submit(gpus=4), await world.submit(gpus=3)
        await world.advance(timedelta(seconds=1))  # why runs wait is written once a second
        waiting = await world.runs.get(second)
        assert (waiting.phase, waiting.position) == (RunPhase.QUEUED, 1)
        assert waiting.hold_detail
        await world.until(lambda: world.final(second))
        assert world.engine.started_attempts == [attempt_id(first, 1), attempt_id(second, 1)]

    play(tmp_path, scene)


def test_a_turn_that_finds_nothing_to_do_writes_nothing(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        applied: list[Plan] = []
        apply = world.cluster._inner.apply

        async def noted(plan: Plan, /, **given: Any) -> Any:
            applied.append(plan)
            return await apply(plan, **given)

        world.cluster._inner.apply = noted
        world.start()
        await world.settle()
        await world.submit(gpus=4)
        await world.settle()
        await world.submit(gpus=4)  # it waits, and is promised a start: that is written
        await world.settle()
        assert [len(plan.place) for plan in applied] == [1, 0]
        third = await world.submit(gpus=4)
        await world.settle()
        latest = world.controller.latest_plan
        assert latest is not None and {gang.id for gang in latest[0].pending} >= {third}  # it was looked at
        before = len(applied)
        world.controller.request_cycle()
        await world.settle()
        assert world.controller.latest_plan is not latest and len(applied) == before
        await world.advance(timedelta(seconds=2))
        assert (await world.runs.get(third)).hold_reason  # why it waits is written all the same
        await world.until(lambda: world.final(third))

    play(tmp_path, scene)


def test_a_lost_attempt_is_repeated_until_its_attempts_are_used_up(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.start()
        run = await world.submit(max_attempts=3)
        await world.until(lambda: world.final(run))
        assert world.engine.started_attempts == [attempt_id(run, n) for n in (1, 2, 3)]
        assert (await world.runs.get(run)).phase is RunPhase.FAILED

    play(tmp_path, scene, lambda _a, _r: ReplicaScript(exit=LOST))


def test_an_attempt_without_a_trace_is_lost(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.start()
        run = await world.submit()
        await world.advance(timedelta(seconds=4))
        world.engine.lose_attempt(attempt_id(run, 1))
        await world.until(lambda: world.final(run))
        assert world.engine.started_attempts == [attempt_id(run, 1), attempt_id(run, 2)]
        assert (await world.runs.get(run)).phase is RunPhase.SUCCEEDED

    play(tmp_path, scene)


def test_a_refused_launch_is_tried_again_with_growing_pauses_and_says_why_it_waits(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.start()
        run = await world.submit(max_attempts=1)

        async def is_held() -> bool:
            found = await world.runs.get(run)
            return (
                found.hold_reason == "put-back"
                and "the 3rd time in a row" in found.hold_detail
                and "refuses" in found.hold_detail
            )

        await world.until(is_held)
        await world.until(lambda: world.final(run))
        assert (await world.runs.get(run)).phase is RunPhase.SUCCEEDED
        placed = [attempt.placed_at for attempt in await world.runs.attempts(run)]
        gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(placed)]
        assert gaps == sorted(gaps) and gaps[0] >= 2 and gaps[-1] >= 8
        assert world.engine.started_attempts == [attempt_id(run, 5)]

    play(tmp_path, scene, lambda attempt, _r: ReplicaScript(fails_launch=split_attempt(attempt)[1] < 5))


def test_a_gang_ends_together_when_one_replica_fails(tmp_path: Path) -> None:
    def fate(_attempt: AttemptId, rank: int) -> ReplicaScript:
        return (
            ReplicaScript(run_time=timedelta(seconds=3), exit=FAILED)
            if rank == 1
            else ReplicaScript(run_time=timedelta(hours=5))
        )

    async def scene(world: World) -> None:
        world.start()
        run = await world.submit(replicas=3)
        await world.until(lambda: world.final(run), within=timedelta(minutes=1))
        found = await world.runs.get(run)
        assert found.phase is RunPhase.FAILED
        assert found.exit == Exit(ExitKind.EXIT_CODE, 3, "replica 1: exit code 3")

    play(tmp_path, scene, fate)


def test_a_run_is_stopped_with_its_grace(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.start()
        run = await world.submit()
        await world.advance(timedelta(seconds=5))
        await world.controller.stop(run, grace=timedelta(seconds=30))
        await world.settle()
        assert (await world.runs.get(run)).phase is RunPhase.STOPPING
        await world.advance(timedelta(seconds=25))
        assert not await world.final(run)
        await world.advance(timedelta(seconds=10))
        assert (await world.runs.get(run)).phase is RunPhase.CANCELLED

    play(tmp_path, scene, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=1), ignores_stop=True))


class Asked(FakeEngine):
    """how: of each time that an attempt was asked to end, whether at a safe point."""

    how: list[bool]

    async def stop(self, attempt: AttemptId, /, *, grace: timedelta, preempt: bool = False) -> None:
        self.how.append(preempt)
        await super().stop(attempt, grace=grace, preempt=preempt)


def test_who_is_stopped_at_a_safe_point_is_not_asked_to_end_at_once_by_the_next_look(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.engine = engine = Asked(world.clock, NODES, world.engine.script_of)
        engine.how = []
        world.cluster = store = Gated(world.cluster)
        world.start()
        run = await world.submit()
        await world.advance(timedelta(seconds=5))
        await world.controller.stop(run, grace=timedelta(seconds=30), at_safe_point=True)
        await world.advance(timedelta(seconds=5))
        assert not await world.final(run)
        assert engine.how == [True]

        second = await world.submit()
        await world.advance(timedelta(seconds=5))
        engine.how.clear()
        # somebody looks between the word that it should end and the asking
        store.looks = world.controller.observe_now
        await world.controller.stop(second, grace=timedelta(seconds=30), at_safe_point=True)
        await world.settle()
        assert engine.how == [True]

    play(tmp_path, scene, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=1), ignores_stop=True))


def test_a_reservation_finds_its_nodes_free_even_where_runs_take_all_their_grace(tmp_path: Path) -> None:
    grace = timedelta(minutes=20)

    async def scene(world: World) -> None:
        world.start(preempt_grace=grace)
        run = await world.submit(gpus=4)
        await world.advance(timedelta(seconds=5))
        begins = world.clock.now() + timedelta(hours=1)
        booked = Reservation(
            ReservationId("r"),
            "exam",
            begins,
            begins + timedelta(hours=1),
            users=("bob",),
            nodes=(NodeId("a"),),
        )
        await SqlReservationStore(world.database).create(booked)
        world.controller.request_cycle()
        await world.advance(timedelta(minutes=30))
        assert (await world.runs.get(run)).phase is RunPhase.RUNNING
        await world.advance(begins - world.clock.now())
        assert (await world.runs.get(run)).phase is RunPhase.QUEUED

    play(tmp_path, scene, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=9), ignores_stop=True))


def test_a_start_that_was_promised_is_not_late_while_those_who_leave_have_time_left(tmp_path: Path) -> None:
    grace = timedelta(minutes=10)

    async def scene(world: World) -> None:
        world.start(preempt_grace=grace)
        await world.submit(gpus=4, priority=10)
        await world.advance(timedelta(minutes=5))
        urgent = await world.submit(gpus=4, priority=90)
        await world.advance(grace - timedelta(seconds=30))
        found = await world.runs.get(urgent)
        assert (found.phase, found.hold_reason) == (RunPhase.QUEUED, HoldReason.PREEMPTING)
        assert (await world.controller.snapshot()).preempt_grace_s == grace.total_seconds()
        await world.advance(timedelta(minutes=1))
        assert (await world.runs.get(urgent)).phase is RunPhase.RUNNING
        assert [event.kind for event in await world.runs.events(urgent)] == [RunEventKind.PROMISED]

    play(tmp_path, scene, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=9), ignores_stop=True))


def test_what_becomes_free_ends_the_rest_after_a_turn_in_vain_before_its_time(tmp_path: Path) -> None:
    began: list[datetime] = []

    class Slow(Planner):
        """Thinks for a second."""

        def __call__(self, snapshot: Snapshot, /) -> Plan:
            began.append(snapshot.now)
            clock.move_to(clock.now() + timedelta(seconds=1))
            return super().__call__(snapshot)

    async def scene(world: World) -> None:
        nonlocal clock
        clock, world.new_policy, world.observe_every = world.clock, Slow, timedelta(milliseconds=100)
        world.start()
        first = await world.submit(gpus=4)
        await world.advance(timedelta(seconds=10))
        second = await world.submit(gpus=4)
        await world.settle()  # the turn in vain is over, and the rest has begun
        ended = clock.now()
        assert ended - began[-1] == timedelta(seconds=1)
        await world.controller.stop(first, grace=timedelta(0))
        await world.advance(timedelta(seconds=10))
        assert (await world.runs.get(second)).phase is RunPhase.RUNNING
        assert began[-1] == ended + timedelta(seconds=CYCLE_PAUSE_FACTOR)

    clock: Any = None
    play(tmp_path, scene, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=1)))


def test_a_waiting_run_is_stopped_at_once(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.start()
        await world.settle()
        await world.submit(gpus=4)
        waiting = await world.submit(gpus=4)
        await world.settle()
        await world.controller.stop(waiting)
        await world.settle()
        assert (await world.runs.get(waiting)).phase is RunPhase.CANCELLED
        assert world.ended == [waiting]

    play(tmp_path, scene)


def test_a_stop_while_the_engine_launches_is_not_forgotten(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        gate = asyncio.Event()
        launch = world.engine.launch

        class Slow:
            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

            async def launch(self, given: object, /) -> None:
                await gate.wait()
                await launch(given)  # type: ignore[arg-type]

        inner = world.engine
        world.engine = Slow()  # type: ignore[assignment]
        world.start()
        await world.settle()
        run = await world.submit()
        await world.settle()
        await world.controller.stop(run)
        await world.settle()
        gate.set()
        await world.settle()
        assert inner.started_attempts == [attempt_id(run, 1)]
        await world.until(lambda: world.final(run), within=timedelta(minutes=1))
        assert (await world.runs.get(run)).phase is RunPhase.CANCELLED

    play(tmp_path, scene, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=5)))


def test_the_next_controller_takes_back_what_runs_and_starts_what_was_not(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.start()
        await world.settle()
        running = await world.submit()
        await world.advance(timedelta(seconds=3))
        await world.crash()
        # A plan that was applied just before the crash, and never launched.
        placed = await world.submit()
        await world.place_without_launching()
        world.start()
        await world.until(lambda: world.final(placed))
        await world.until(lambda: world.final(running))
        assert world.engine.started_attempts == [attempt_id(running, 1), attempt_id(placed, 1)]

    play(tmp_path, scene)


def test_the_engine_forgets_what_was_stopped_before_it_was_started(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        forgotten: list[AttemptId] = []

        class HalfLaunched:  # its folders were written, its processes never started: it is not seen
            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

            async def forget(self, attempt: AttemptId, /) -> None:
                forgotten.append(attempt)

        inner = world.engine
        world.engine = HalfLaunched()  # type: ignore[assignment]
        run = await world.submit()
        await world.cluster.record_observation("fake", await inner.observe(), now=world.clock.now())
        await world.place_without_launching()
        await world.cluster.request_stop(run, now=world.clock.now())
        world.start()
        await world.until(lambda: world.final(run), within=timedelta(minutes=1))
        assert (forgotten, inner.started_attempts) == ([attempt_id(run, 1)], [])

    play(tmp_path, scene)


def test_what_was_asked_to_end_before_the_crash_ends_after_it(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.start()
        await world.settle()
        run = await world.submit()
        await world.advance(timedelta(seconds=3))
        await world.crash()
        await world.cluster.request_stop(run, now=world.clock.now())
        world.start()
        await world.until(lambda: world.final(run), within=timedelta(minutes=1))
        assert (await world.runs.get(run)).phase is RunPhase.CANCELLED

    play(tmp_path, scene, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=5)))


def test_late_news_of_an_old_attempt_is_ignored_and_its_replica_told_to_end(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.start()
        await world.settle()
        run = await world.submit()
        await world.advance(timedelta(seconds=4))
        world.engine.lose_attempt(attempt_id(run, 1))
        await world.advance(timedelta(seconds=3))
        assert (await world.runs.get(run)).attempt.number == 2
        late = ReplicaStatus(0, ReplicaPhase.EXITED, exit=FAILED)
        assert await world.controller.record_status(attempt_id(run, 1), late)
        await world.until(lambda: world.final(run))
        assert (await world.runs.get(run)).phase is RunPhase.SUCCEEDED

    play(tmp_path, scene)


def test_those_placed_first_start_before_all_are_and_who_waits_is_told_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that places very many is made in pieces, each twice as large as the one before."""
    monkeypatch.setattr(scheduling_loop, "INITIAL_PLACEMENT_LIMIT", 1)

    async def scene(world: World) -> None:
        plans: list[Plan] = []
        planner = Planner()

        def policy(snapshot: Snapshot) -> Plan:
            plans.append(planner(snapshot))
            return plans[-1]

        world.start()
        await world.settle()
        monkeypatch.setattr(world.controller.__dict__["_scheduling_loop"], "_policy", policy)
        spec = RunSpec("p", (RoleSpec(("python", "x.py"), resources=Resources(1000, 2**30, 1)),))
        submitted = [RunId(f"run-00{number}") for number in range(5)]  # for four GPUs
        await world.runs.create([NewRun(run, "alice", spec) for run in submitted], now=world.clock.now())
        assert await world.controller.wait_for_cycle(10)
        assert [len(plan.place) for plan in plans if plan.place] == [1, 2, 1]
        assert (await world.runs.get(submitted[-1])).position == 1
        await world.settle()
        # each of the three is read for itself
        assert sorted(world.engine.started_attempts) == [attempt_id(run, 1) for run in submitted[:4]]

    play(tmp_path, scene)


def test_wait_planned_tells_the_place_in_the_queue(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.start()
        await world.settle()
        await world.submit(gpus=4)
        await world.settle()
        run = await world.submit(gpus=4)
        assert await world.controller.wait_for_cycle(10)
        assert (await world.runs.get(run)).position == 1

    play(tmp_path, scene)


def test_a_fault_of_the_engine_is_outlived(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        observe, left = world.engine.observe, 3

        class Flaky:
            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

            async def observe(self) -> object:
                nonlocal left
                if left:
                    left -= 1
                    raise OSError("no such device")
                return await observe()

        inner = world.engine
        world.engine = Flaky()  # type: ignore[assignment]
        world.start()
        run = await world.submit()
        await world.until(lambda: world.final(run))
        assert (await world.runs.get(run)).phase is RunPhase.SUCCEEDED

    play(tmp_path, scene)


def test_what_was_launched_while_the_engine_looked_is_not_lost(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        inner, armed, gate, looked = world.engine, False, asyncio.Event(), asyncio.Event()

        class Slow:
            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

            async def observe(self) -> object:
                seen = await inner.observe()
                if armed:
                    looked.set()
                    await gate.wait()
                return seen

        world.engine = Slow()  # type: ignore[assignment]
        world.start()
        await world.settle()
        await world.submit()  # so that the engine is asked
        armed = True
        while not looked.is_set():
            await world.advance(timedelta(seconds=1))
        run = await world.submit()
        await world.settle()
        assert attempt_id(run, 1) in inner.started_attempts
        await world.controller.record_status(attempt_id(run, 1), ReplicaStatus(0, ReplicaPhase.RUNNING))
        assert (await world.runs.get(run)).phase is RunPhase.RUNNING
        armed = False
        gate.set()  # what the engine saw is older than the launch
        await world.settle()
        assert (await world.runs.get(run)).attempt.number == 1
        await world.until(lambda: world.final(run))
        assert inner.started_attempts.count(attempt_id(run, 1)) == 1
        assert attempt_id(run, 2) not in inner.started_attempts

    play(tmp_path, scene)

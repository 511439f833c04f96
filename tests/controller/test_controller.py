"""The controller, one situation at a time: real SQL store, scripted engine, manual clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hopyard.controller import scheduling_loop
from hopyard.controller.controller import CYCLE_PAUSE_FACTOR
from hopyard.domain.attempt import AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Observation, Plan, Snapshot
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import AttemptId, NodeId, ReservationId, RunId, attempt_id, split_attempt
from hopyard.domain.replica import StopOrder
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.domain.run import RoleSpec, RunEventKind, RunPhase, RunSpec
from hopyard.interfaces.run_store import NewRun
from hopyard.scheduler.cycle.planner import Planner
from hopyard.stores.sql.reservations import SqlReservationStore
from hopyard.testing.fake_engine import ReplicaScript
from tests.controller.controller_harness import ControllerHarness, GatedStore, run_scenario

FAILED = Exit(ExitKind.EXIT_CODE, 3, "exit code 3")
LOST = Exit(ExitKind.LOST, 1, "its processes vanished")


def test_run_is_placed_launched_and_recorded(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        await harness.settle()
        run = await harness.submit(gpus=2)
        await harness.settle()
        assert harness.engine.started_attempts == [attempt_id(run, 1)]  # at once: no time has passed
        launch = harness.engine.launches[attempt_id(run, 1)]
        assert launch.replicas[0].token == f"token-of-{run}.1"
        assert launch.placement.assignments[0].gpus == (0, 1)
        await harness.advance_until(lambda: harness.is_final(run))
        result = await harness.runs.get(run)
        assert (result.phase, result.exit.reason) == (RunPhase.SUCCEEDED, "finished")
        await harness.advance(timedelta(seconds=2))
        assert harness.engine.forgotten == [attempt_id(run, 1)]
        assert harness.ended == [run]

    run_scenario(tmp_path, scenario)


def test_idle_controller_does_not_observe(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        await harness.settle()
        run = await harness.submit()
        await harness.advance_until(lambda: harness.is_final(run))
        await harness.advance(timedelta(seconds=3))
        assert harness.clock.next_at() is None  # no task sleeps, so nothing wakes by itself
        again = await harness.submit()
        await harness.advance_until(lambda: harness.is_final(again))

    run_scenario(tmp_path, scenario)


def test_run_that_does_not_fit_waits_and_starts_later(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        await harness.settle()
        first, second = await harness.submit(gpus=4), await harness.submit(gpus=3)
        await harness.advance(timedelta(seconds=1))  # why runs wait is written once a second
        waiting = await harness.runs.get(second)
        assert (waiting.phase, waiting.position) == (RunPhase.QUEUED, 1)
        assert waiting.hold_detail
        await harness.advance_until(lambda: harness.is_final(second))
        assert harness.engine.started_attempts == [attempt_id(first, 1), attempt_id(second, 1)]

    run_scenario(tmp_path, scenario)


def test_cycle_without_changes_writes_nothing(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        applied: list[Plan] = []
        apply = harness.cluster._inner.apply

        async def recording_apply(plan: Plan, /, **kwargs: Any) -> Any:
            applied.append(plan)
            return await apply(plan, **kwargs)

        harness.cluster._inner.apply = recording_apply
        harness.start()
        await harness.settle()
        await harness.submit(gpus=4)
        await harness.settle()
        await harness.submit(gpus=4)  # it waits, and is promised a start: that is written
        await harness.settle()
        assert [len(plan.place) for plan in applied] == [1, 0]
        third = await harness.submit(gpus=4)
        await harness.settle()
        latest = harness.controller.latest_plan
        assert latest is not None and {gang.id for gang in latest[0].pending} >= {third}  # it was considered
        before = len(applied)
        harness.controller.request_cycle()
        await harness.settle()
        assert harness.controller.latest_plan is not latest and len(applied) == before
        await harness.advance(timedelta(seconds=2))
        assert (await harness.runs.get(third)).hold_reason  # why it waits is written all the same
        await harness.advance_until(lambda: harness.is_final(third))

    run_scenario(tmp_path, scenario)


def test_lost_attempt_is_retried_up_to_max_attempts(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        run = await harness.submit(max_attempts=3)
        await harness.advance_until(lambda: harness.is_final(run))
        assert harness.engine.started_attempts == [attempt_id(run, n) for n in (1, 2, 3)]
        assert (await harness.runs.get(run)).phase is RunPhase.FAILED

    run_scenario(tmp_path, scenario, lambda _a, _r: ReplicaScript(exit=LOST))


def test_vanished_attempt_is_lost(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        run = await harness.submit()
        await harness.advance(timedelta(seconds=4))
        harness.engine.lose_attempt(attempt_id(run, 1))
        await harness.advance_until(lambda: harness.is_final(run))
        assert harness.engine.started_attempts == [attempt_id(run, 1), attempt_id(run, 2)]
        assert (await harness.runs.get(run)).phase is RunPhase.SUCCEEDED

    run_scenario(tmp_path, scenario)


def test_refused_launch_is_retried_with_backoff_and_a_hold_reason(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        run = await harness.submit(max_attempts=1)

        async def is_held() -> bool:
            result = await harness.runs.get(run)
            return (
                result.hold_reason == "put-back"
                and "the 3rd time in a row" in result.hold_detail
                and "refuses" in result.hold_detail
            )

        await harness.advance_until(is_held)
        await harness.advance_until(lambda: harness.is_final(run))
        assert (await harness.runs.get(run)).phase is RunPhase.SUCCEEDED
        placed = [attempt.placed_at for attempt in await harness.runs.attempts(run)]
        gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(placed)]
        assert gaps == sorted(gaps) and gaps[0] >= 2 and gaps[-1] >= 8
        assert harness.engine.started_attempts == [attempt_id(run, 5)]

    run_scenario(
        tmp_path, scenario, lambda attempt, _r: ReplicaScript(fails_launch=split_attempt(attempt)[1] < 5)
    )


def test_failed_replica_stops_its_gang(tmp_path: Path) -> None:
    def script_of(_attempt: AttemptId, rank: int) -> ReplicaScript:
        return (
            ReplicaScript(run_time=timedelta(seconds=3), exit=FAILED)
            if rank == 1
            else ReplicaScript(run_time=timedelta(hours=5))
        )

    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        run = await harness.submit(replicas=3)
        await harness.advance_until(lambda: harness.is_final(run), within=timedelta(minutes=1))
        result = await harness.runs.get(run)
        assert result.phase is RunPhase.FAILED
        assert result.exit == Exit(ExitKind.EXIT_CODE, 3, "replica 1: exit code 3")

    run_scenario(tmp_path, scenario, script_of)


def test_run_is_stopped_with_its_grace(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        run = await harness.submit()
        await harness.advance(timedelta(seconds=5))
        await harness.controller.stop(run, StopOrder(30.0))
        await harness.settle()
        assert (await harness.runs.get(run)).phase is RunPhase.STOPPING
        await harness.advance(timedelta(seconds=25))
        assert not await harness.is_final(run)
        await harness.advance(timedelta(seconds=10))
        assert (await harness.runs.get(run)).phase is RunPhase.CANCELLED

    run_scenario(
        tmp_path, scenario, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=1), ignores_stop=True)
    )


def test_safe_point_stop_is_not_replaced_by_reconciliation(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.cluster = store = GatedStore(harness.cluster)
        harness.start()
        run = await harness.submit()
        await harness.advance(timedelta(seconds=5))
        await harness.controller.stop(run, StopOrder.for_preemption(30.0))
        await harness.advance(timedelta(seconds=5))
        assert not await harness.is_final(run)
        assert [order.at_safe_point for _, order in harness.engine.stops] == [True]

        second = await harness.submit()
        await harness.advance(timedelta(seconds=5))
        harness.engine.stops.clear()
        # a reconciliation between recording that it should stop and stopping it
        store.on_stop_recorded = harness.controller.observe_now
        await harness.controller.stop(second, StopOrder.for_preemption(30.0))
        await harness.settle()
        assert [order.at_safe_point for _, order in harness.engine.stops] == [True]

    run_scenario(
        tmp_path, scenario, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=1), ignores_stop=True)
    )


def test_reservation_nodes_are_free_even_if_runs_use_their_full_grace(tmp_path: Path) -> None:
    grace = timedelta(minutes=20)

    async def scenario(harness: ControllerHarness) -> None:
        harness.start(preempt_grace=grace)
        run = await harness.submit(gpus=4)
        await harness.advance(timedelta(seconds=5))
        begins = harness.clock.now() + timedelta(hours=1)
        reservation = Reservation(
            ReservationId("r"),
            "exam",
            begins,
            begins + timedelta(hours=1),
            users=("bob",),
            nodes=(NodeId("a"),),
        )
        await SqlReservationStore(harness.database).create(reservation)
        harness.controller.request_cycle()
        await harness.advance(timedelta(minutes=30))
        assert (await harness.runs.get(run)).phase is RunPhase.RUNNING
        await harness.advance(begins - harness.clock.now())
        assert (await harness.runs.get(run)).phase is RunPhase.QUEUED

    run_scenario(
        tmp_path, scenario, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=9), ignores_stop=True)
    )


def test_promised_start_is_not_late_within_the_victims_grace(tmp_path: Path) -> None:
    grace = timedelta(minutes=10)

    async def scenario(harness: ControllerHarness) -> None:
        harness.start(preempt_grace=grace)
        await harness.submit(gpus=4, priority=10)
        await harness.advance(timedelta(minutes=5))
        urgent = await harness.submit(gpus=4, priority=90)
        await harness.advance(grace - timedelta(seconds=30))
        run = await harness.runs.get(urgent)
        assert (run.phase, run.hold_reason) == (RunPhase.QUEUED, HoldReason.PREEMPTING)
        assert (await harness.controller.snapshot()).preempt_grace_s == grace.total_seconds()
        await harness.advance(timedelta(minutes=1))
        assert (await harness.runs.get(urgent)).phase is RunPhase.RUNNING
        assert [event.kind for event in await harness.runs.events(urgent)] == [RunEventKind.PROMISED]

    run_scenario(
        tmp_path, scenario, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=9), ignores_stop=True)
    )


def test_released_capacity_ends_the_pause_after_an_idle_cycle(tmp_path: Path) -> None:
    began: list[datetime] = []

    class SlowEngine(Planner):
        """A planner whose cycle takes a second."""

        def __call__(self, snapshot: Snapshot, /) -> Plan:
            began.append(snapshot.now)
            clock.move_to(clock.now() + timedelta(seconds=1))
            return super().__call__(snapshot)

    async def scenario(harness: ControllerHarness) -> None:
        nonlocal clock
        clock, harness.new_policy, harness.observe_interval = (
            harness.clock,
            SlowEngine,
            timedelta(milliseconds=100),
        )
        harness.start()
        first = await harness.submit(gpus=4)
        await harness.advance(timedelta(seconds=10))
        second = await harness.submit(gpus=4)
        await harness.settle()  # the cycle without a result is over, and the pause has begun
        ended = clock.now()
        assert ended - began[-1] == timedelta(seconds=1)
        await harness.controller.stop(first, StopOrder(0.0))
        await harness.advance(timedelta(seconds=10))
        assert (await harness.runs.get(second)).phase is RunPhase.RUNNING
        assert began[-1] == ended + timedelta(seconds=CYCLE_PAUSE_FACTOR)

    clock: Any = None
    run_scenario(tmp_path, scenario, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=1)))


def test_pending_run_is_stopped_at_once(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        await harness.settle()
        await harness.submit(gpus=4)
        waiting = await harness.submit(gpus=4)
        await harness.settle()
        await harness.controller.stop(waiting)
        await harness.settle()
        assert (await harness.runs.get(waiting)).phase is RunPhase.CANCELLED
        assert harness.ended == [waiting]

    run_scenario(tmp_path, scenario)


def test_stop_during_a_launch_is_applied(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        gate = asyncio.Event()
        launch = harness.engine.launch

        class SlowEngine:
            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

            async def launch(self, launch_order: object, /) -> None:
                await gate.wait()
                await launch(launch_order)  # type: ignore[arg-type]

        inner = harness.engine
        harness.engine = SlowEngine()  # type: ignore[assignment]
        harness.start()
        await harness.settle()
        run = await harness.submit()
        await harness.settle()
        await harness.controller.stop(run)
        await harness.settle()
        gate.set()
        await harness.settle()
        assert inner.started_attempts == [attempt_id(run, 1)]
        await harness.advance_until(lambda: harness.is_final(run), within=timedelta(minutes=1))
        assert (await harness.runs.get(run)).phase is RunPhase.CANCELLED

    run_scenario(tmp_path, scenario, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=5)))


def test_next_controller_adopts_running_attempts_and_launches_placed_ones(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        await harness.settle()
        running = await harness.submit()
        await harness.advance(timedelta(seconds=3))
        await harness.crash()
        # A plan that was applied just before the crash, and never launched.
        placed = await harness.submit()
        await harness.place_without_launching()
        harness.start()
        await harness.advance_until(lambda: harness.is_final(placed))
        await harness.advance_until(lambda: harness.is_final(running))
        assert harness.engine.started_attempts == [attempt_id(running, 1), attempt_id(placed, 1)]

    run_scenario(tmp_path, scenario)


def test_engine_forgets_an_attempt_stopped_before_its_start(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        forgotten: list[AttemptId] = []

        class HalfLaunchedEngine:  # its folders were written, its processes never started: it is not seen
            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

            async def forget(self, attempt: AttemptId, /) -> None:
                forgotten.append(attempt)

        inner = harness.engine
        harness.engine = HalfLaunchedEngine()  # type: ignore[assignment]
        run = await harness.submit()
        await harness.cluster.record_observation("fake", await inner.observe(), now=harness.clock.now())
        await harness.place_without_launching()
        await harness.cluster.request_stop(run, now=harness.clock.now())
        harness.start()
        await harness.advance_until(lambda: harness.is_final(run), within=timedelta(minutes=1))
        assert (forgotten, inner.started_attempts) == ([attempt_id(run, 1)], [])

    run_scenario(tmp_path, scenario)


def test_stop_request_survives_a_crash(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        await harness.settle()
        run = await harness.submit()
        await harness.advance(timedelta(seconds=3))
        await harness.crash()
        await harness.cluster.request_stop(run, now=harness.clock.now())
        harness.start()
        await harness.advance_until(lambda: harness.is_final(run), within=timedelta(minutes=1))
        assert (await harness.runs.get(run)).phase is RunPhase.CANCELLED

    run_scenario(tmp_path, scenario, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=5)))


def test_restarted_server_repeats_the_order_of_a_stop(tmp_path: Path) -> None:
    """Its grace, its signal and its safe point. A plain stop keeps the signal of an earlier one."""
    saves = StopOrder.for_request(3000.0, "INT", preempt=True)
    stops = StopOrder.for_request(2000.0)

    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        run = await harness.submit()
        await harness.advance(timedelta(seconds=3))
        for order, repeated in ((saves, saves), (stops, replace(stops, signal="INT"))):
            await harness.controller.stop(run, order)
            await harness.settle()
            harness.engine.stops.clear()
            await harness.crash()
            harness.start()
            await harness.advance(timedelta(seconds=5))
            assert harness.engine.stops == [(attempt_id(run, 1), repeated)]
            assert harness.controller.stop_order(attempt_id(run, 1)) == repeated

    run_scenario(
        tmp_path,
        scenario,
        lambda _a, _r: ReplicaScript(
            run_time=timedelta(hours=5), ignores_stop=True, save_time=timedelta(hours=1)
        ),
    )


def test_late_status_of_an_old_attempt_is_ignored_and_its_replica_stopped(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        await harness.settle()
        run = await harness.submit()
        await harness.advance(timedelta(seconds=4))
        harness.engine.lose_attempt(attempt_id(run, 1))
        await harness.advance(timedelta(seconds=3))
        assert (await harness.runs.get(run)).attempt.number == 2
        late = ReplicaStatus(0, ReplicaPhase.EXITED, exit=FAILED)
        assert await harness.controller.record_status(attempt_id(run, 1), late)
        await harness.advance_until(lambda: harness.is_final(run))
        assert (await harness.runs.get(run)).phase is RunPhase.SUCCEEDED

    run_scenario(tmp_path, scenario)


def test_first_batch_starts_before_the_last_and_waiters_are_notified_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan with very many placements is made in batches, each twice as large as the last."""
    monkeypatch.setattr(scheduling_loop, "INITIAL_PLACEMENT_LIMIT", 1)

    async def scenario(harness: ControllerHarness) -> None:
        plans: list[Plan] = []
        planner = Planner()

        def policy(snapshot: Snapshot) -> Plan:
            plans.append(planner(snapshot))
            return plans[-1]

        harness.start()
        await harness.settle()
        monkeypatch.setattr(harness.controller.__dict__["_scheduling_loop"], "_policy", policy)
        spec = RunSpec("p", (RoleSpec(("python", "x.py"), resources=Resources(1000, 2**30, 1)),))
        submitted = [RunId(f"run-00{number}") for number in range(5)]  # for four GPUs
        await harness.runs.create([NewRun(run, "alice", spec) for run in submitted], now=harness.clock.now())
        assert await harness.controller.wait_for_cycle(10)
        assert [len(plan.place) for plan in plans if plan.place] == [1, 2, 1]
        assert (await harness.runs.get(submitted[-1])).position == 1
        await harness.settle()
        # each of the three is read for itself
        assert sorted(harness.engine.started_attempts) == [attempt_id(run, 1) for run in submitted[:4]]

    run_scenario(tmp_path, scenario)


def test_wait_for_cycle_sets_the_queue_position(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        await harness.settle()
        await harness.submit(gpus=4)
        await harness.settle()
        run = await harness.submit(gpus=4)
        assert await harness.controller.wait_for_cycle(10)
        assert (await harness.runs.get(run)).position == 1

    run_scenario(tmp_path, scenario)


def test_run_shows_that_a_replica_ended_before_it_had_sent_everything(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        inner = harness.engine

        class Engine:
            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

            async def observe(self) -> Observation:
                seen = await inner.observe()
                attempts = (
                    AttemptStatus(
                        status.attempt,
                        tuple(replace(each, is_unsent=each.exit is not None) for each in status.replicas),
                    )
                    for status in seen.attempts
                )
                return replace(seen, attempts=tuple(attempts))

        harness.engine = Engine()  # type: ignore[assignment]
        harness.start()
        run = await harness.submit()
        await harness.advance_until(lambda: harness.is_final(run))
        [sentence] = (await harness.runs.get(run)).unstored
        assert sentence.startswith("the last output and files of replica 0 may be missing")

    run_scenario(tmp_path, scenario)


def test_controller_survives_engine_errors(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        observe, failures_left = harness.engine.observe, 3

        class FlakyEngine:
            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

            async def observe(self) -> object:
                nonlocal failures_left
                if failures_left:
                    failures_left -= 1
                    raise OSError("no such device")
                return await observe()

        inner = harness.engine
        harness.engine = FlakyEngine()  # type: ignore[assignment]
        harness.start()
        run = await harness.submit()
        await harness.advance_until(lambda: harness.is_final(run))
        assert (await harness.runs.get(run)).phase is RunPhase.SUCCEEDED

    run_scenario(tmp_path, scenario)


def test_attempt_launched_during_an_observation_is_not_lost(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        inner, armed, gate, looked = harness.engine, False, asyncio.Event(), asyncio.Event()

        class SlowEngine:
            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

            async def observe(self) -> object:
                observation = await inner.observe()
                if armed:
                    looked.set()
                    await gate.wait()
                return observation

        harness.engine = SlowEngine()  # type: ignore[assignment]
        harness.start()
        await harness.settle()
        await harness.submit()  # so that the engine is observed
        armed = True
        while not looked.is_set():
            await harness.advance(timedelta(seconds=1))
        run = await harness.submit()
        await harness.settle()
        assert attempt_id(run, 1) in inner.started_attempts
        await harness.controller.record_status(attempt_id(run, 1), ReplicaStatus(0, ReplicaPhase.RUNNING))
        assert (await harness.runs.get(run)).phase is RunPhase.RUNNING
        armed = False
        gate.set()  # the observation is older than the launch
        await harness.settle()
        assert (await harness.runs.get(run)).attempt.number == 1
        await harness.advance_until(lambda: harness.is_final(run))
        assert inner.started_attempts.count(attempt_id(run, 1)) == 1
        assert attempt_id(run, 2) not in inner.started_attempts

    run_scenario(tmp_path, scenario)

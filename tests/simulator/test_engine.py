"""The simulated engine alone: statuses, and their times, of launched and stopped attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from hopyard.domain.attempt import ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.gang import Assignment, Gang, Placement, Role
from hopyard.domain.ids import AttemptId, Digest, GangId, NodeId, RunId
from hopyard.domain.launch import Launch, ReplicaLaunch, RestorePoint
from hopyard.domain.replica import StopOrder
from hopyard.domain.resources import Resources
from hopyard.errors import LaunchFailed
from hopyard.simulator.clock import START_TIME, ManualClock
from hopyard.simulator.engine import SimulatedAttempt, SimulatedEngine, SimulatedWork
from hopyard.simulator.event_queue import EventQueue
from hopyard.simulator.settings import TimeCosts
from tests.simulator.workloads import node

ATTEMPT, RUN = AttemptId("run-1.1"), RunId("run-1")


class EngineHarness:
    """An engine with two nodes, and all its notifications with their times in seconds."""

    def __init__(self, takes_s: float, **costs: float) -> None:
        self.clock, self.agenda = ManualClock(), EventQueue()
        self.statuses: list[tuple[float, int, ReplicaPhase, ExitKind | None]] = []
        self.saved: list[tuple[float, int]] = []
        self.resumed_from: list[float] = []
        works = {RUN: SimulatedWork(timedelta(seconds=takes_s), 2)}
        self.engine = SimulatedEngine(
            self.clock, self.agenda, (node("n0"), node("n1")), works, TimeCosts(**costs), self
        )

    def now_s(self) -> float:
        return (self.clock.now() - START_TIME).total_seconds()

    async def on_status(self, attempt: AttemptId, status: ReplicaStatus) -> None:
        assert attempt == ATTEMPT
        self.statuses.append(
            (self.now_s(), status.rank, status.phase, None if status.exit is None else status.exit.kind)
        )

    async def on_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.saved.append((self.now_s(), checkpoint.step))

    async def on_nodes_changed(self) -> None: ...

    def on_started(self, attempt: SimulatedAttempt) -> None: ...

    def on_ended(self, attempt: SimulatedAttempt, saved_work: timedelta) -> None:
        self.resumed_from.append(saved_work.total_seconds())

    async def launch(
        self, *, restore_s: float | None = None, limit_s: float | None = None, replicas: int = 2
    ) -> None:
        gang = Gang(GangId(RUN), (Role("worker", replicas, Resources(1000, 0, 1)),), START_TIME)
        places = tuple(Assignment(rank, NodeId(f"n{rank}"), (0,)) for rank in range(replicas))
        restore = None if restore_s is None else RestorePoint(round(restore_s * 1e6), Digest("0" * 64))
        result = tuple(
            ReplicaLaunch(
                ATTEMPT,
                RUN,
                "a/b/1",
                rank,
                "worker",
                rank,
                replicas,
                ("x",),
                Resources(),
                "",
                "",
                time_limit_s=limit_s,
                restore=restore,
            )
            for rank in range(replicas)
        )
        await self.engine.launch(Launch(ATTEMPT, Placement(gang, places), result))

    async def until(self, seconds: float) -> None:
        until = START_TIME + timedelta(seconds=seconds)
        while (at := self.agenda.next_at()) is not None and at <= until:
            self.clock.move_to(at)
            while (happening := self.agenda.pop_due(at)) is not None:
                await happening()
        self.clock.move_to(until)

    def exits(self) -> list[tuple[float, int, ExitKind | None]]:
        return [(at, rank, kind) for at, rank, phase, kind in self.statuses if phase is ReplicaPhase.EXITED]


def run_simulation(scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario()

    asyncio.run(run())


def test_attempt_starts_runs_and_exits() -> None:
    async def scenario() -> None:
        harness = EngineHarness(100, start_s=5)
        await harness.launch()
        await harness.launch()  # again: nothing
        await harness.until(200)
        assert harness.statuses == [
            (5, 0, ReplicaPhase.RUNNING, None),
            (5, 1, ReplicaPhase.RUNNING, None),
            (105, 0, ReplicaPhase.EXITED, ExitKind.EXIT_CODE),
            (105, 1, ReplicaPhase.EXITED, ExitKind.EXIT_CODE),
        ]
        assert harness.resumed_from == [100]
        observation = await harness.engine.observe()
        assert [status.attempt for status in observation.attempts] == [ATTEMPT]
        await harness.engine.forget(ATTEMPT)
        assert (await harness.engine.observe()).attempts == ()

    run_simulation(scenario)


def test_attempt_resumes_from_its_checkpoint() -> None:
    async def scenario() -> None:
        harness = EngineHarness(100, start_s=5, restore_s=10)
        await harness.launch(restore_s=60)
        await harness.until(200)
        assert harness.exits()[0] == (5 + 10 + 40, 0, ExitKind.EXIT_CODE)
        assert harness.resumed_from == [40]

    run_simulation(scenario)


def test_preempted_attempt_saves_before_it_exits() -> None:
    async def scenario() -> None:
        harness = EngineHarness(100, save_s=10)
        await harness.launch()
        await harness.until(30)
        for _ in range(2):  # a second request does not interrupt the save
            await harness.engine.stop(ATTEMPT, StopOrder.for_preemption(60.0))
        await harness.until(200)
        assert harness.saved == [(40, 30_000_000)]
        assert [exit[::2] for exit in harness.exits()] == [(40, ExitKind.PREEMPTED)] * 2
        assert harness.resumed_from == [30]

    run_simulation(scenario)


def test_attempt_is_killed_after_its_grace_and_loses_unsaved_work() -> None:
    async def scenario() -> None:
        harness = EngineHarness(100, save_s=10, checkpoint_every_s=20)
        await harness.launch()
        await harness.until(35)
        await harness.engine.stop(ATTEMPT, StopOrder.for_preemption(3.0))
        await harness.until(200)
        assert harness.saved == [(20, 20_000_000)]
        assert harness.exits()[0] == (38, 0, ExitKind.PREEMPTED)
        assert harness.resumed_from == [20]

    run_simulation(scenario)


def test_stop_during_a_save_is_immediate() -> None:
    async def scenario() -> None:
        harness = EngineHarness(100, save_s=10)
        await harness.launch()
        await harness.until(30)
        await harness.engine.stop(ATTEMPT, StopOrder.for_preemption(60.0))
        await harness.until(32)
        await harness.engine.stop(ATTEMPT, StopOrder(60.0))
        await harness.until(200)
        assert harness.exits()[0] == (32, 0, ExitKind.STOPPED)
        await harness.engine.stop(ATTEMPT, StopOrder(0.0))  # over already
        await harness.engine.stop(AttemptId("unknown.1"), StopOrder(0.0))
        assert len(harness.exits()) == 2

    run_simulation(scenario)


def test_time_limit_ends_the_attempt() -> None:
    async def scenario() -> None:
        harness = EngineHarness(100, start_s=5)
        await harness.launch(limit_s=50)
        await harness.until(200)
        assert harness.exits()[0] == (55, 0, ExitKind.TIME_LIMIT)

    run_simulation(scenario)


def test_half_of_the_replicas_take_twice_as_long() -> None:
    async def scenario() -> None:
        harness = EngineHarness(100)
        await harness.launch(replicas=1)
        await harness.until(300)
        assert harness.exits() == [(200, 0, ExitKind.EXIT_CODE)]

    run_simulation(scenario)


def test_lost_node_ends_the_gang() -> None:
    async def scenario() -> None:
        harness = EngineHarness(100)
        await harness.launch()
        await harness.until(30)
        await harness.engine.lose_node(NodeId("n1"))
        assert harness.exits() == [(30, 0, ExitKind.LOST), (30, 1, ExitKind.LOST)]
        assert [one.ready for one in (await harness.engine.observe()).nodes] == [True, False]
        await harness.engine.forget(ATTEMPT)
        with pytest.raises(LaunchFailed):
            await harness.launch()
        await harness.engine.return_node(NodeId("n1"))
        await harness.launch()
        await harness.until(131)
        assert harness.exits()[-1] == (130, 1, ExitKind.EXIT_CODE)

    run_simulation(scenario)

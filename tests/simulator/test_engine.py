"""The engine alone: what it says, and when, of attempts that it was told to start and to stop."""

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
from hopyard.domain.resources import Resources
from hopyard.errors import LaunchFailed
from hopyard.simulator.clock import START_TIME, ManualClock
from hopyard.simulator.engine import SimulatedAttempt, SimulatedEngine, SimulatedWork
from hopyard.simulator.event_queue import EventQueue
from hopyard.simulator.settings import TimeCosts
from tests.simulator.workloads import node

ATTEMPT, RUN = AttemptId("run-1.1"), RunId("run-1")


class Room:
    """An engine with two machines, and everything that it told, with seconds since the beginning."""

    def __init__(self, takes_s: float, **costs: float) -> None:
        self.clock, self.agenda = ManualClock(), EventQueue()
        self.told: list[tuple[float, int, ReplicaPhase, ExitKind | None]] = []
        self.saved: list[tuple[float, int]] = []
        self.kept: list[float] = []
        works = {RUN: SimulatedWork(timedelta(seconds=takes_s), 2)}
        self.engine = SimulatedEngine(
            self.clock, self.agenda, (node("n0"), node("n1")), works, TimeCosts(**costs), self
        )

    def now_s(self) -> float:
        return (self.clock.now() - START_TIME).total_seconds()

    async def on_status(self, attempt: AttemptId, status: ReplicaStatus) -> None:
        assert attempt == ATTEMPT
        self.told.append(
            (self.now_s(), status.rank, status.phase, None if status.exit is None else status.exit.kind)
        )

    async def on_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.saved.append((self.now_s(), checkpoint.step))

    async def on_nodes_changed(self) -> None: ...

    def on_started(self, attempt: SimulatedAttempt) -> None: ...

    def on_ended(self, attempt: SimulatedAttempt, saved_work: timedelta) -> None:
        self.kept.append(saved_work.total_seconds())

    async def launch(
        self, *, restore_s: float | None = None, limit_s: float | None = None, replicas: int = 2
    ) -> None:
        gang = Gang(GangId(RUN), (Role("worker", replicas, Resources(1000, 0, 1)),), START_TIME)
        places = tuple(Assignment(rank, NodeId(f"n{rank}"), (0,)) for rank in range(replicas))
        restore = None if restore_s is None else RestorePoint(round(restore_s * 1e6), Digest("0" * 64))
        told = tuple(
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
        await self.engine.launch(Launch(ATTEMPT, Placement(gang, places), told))

    async def until(self, seconds: float) -> None:
        until = START_TIME + timedelta(seconds=seconds)
        while (at := self.agenda.next_at()) is not None and at <= until:
            self.clock.move_to(at)
            while (happening := self.agenda.pop_due(at)) is not None:
                await happening()
        self.clock.move_to(until)

    def exits(self) -> list[tuple[float, int, ExitKind | None]]:
        return [(at, rank, kind) for at, rank, phase, kind in self.told if phase is ReplicaPhase.EXITED]


def run_simulation(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await story()

    asyncio.run(run())


def test_a_life() -> None:
    async def story() -> None:
        room = Room(100, start_s=5)
        await room.launch()
        await room.launch()  # again: nothing
        await room.until(200)
        assert room.told == [
            (5, 0, ReplicaPhase.RUNNING, None),
            (5, 1, ReplicaPhase.RUNNING, None),
            (105, 0, ReplicaPhase.EXITED, ExitKind.EXIT_CODE),
            (105, 1, ReplicaPhase.EXITED, ExitKind.EXIT_CODE),
        ]
        assert room.kept == [100]
        seen = await room.engine.observe()
        assert [status.attempt for status in seen.attempts] == [ATTEMPT]
        await room.engine.forget(ATTEMPT)
        assert (await room.engine.observe()).attempts == ()

    run_simulation(story)


def test_it_goes_on_from_what_it_is_given() -> None:
    async def story() -> None:
        room = Room(100, start_s=5, restore_s=10)
        await room.launch(restore_s=60)
        await room.until(200)
        assert room.exits()[0] == (5 + 10 + 40, 0, ExitKind.EXIT_CODE)
        assert room.kept == [40]

    run_simulation(story)


def test_asked_to_make_room_it_saves_first() -> None:
    async def story() -> None:
        room = Room(100, save_s=10)
        await room.launch()
        await room.until(30)
        for _ in range(2):  # asked again, it goes on saving
            await room.engine.stop(ATTEMPT, grace=timedelta(seconds=60), preempt=True)
        await room.until(200)
        assert room.saved == [(40, 30_000_000)]
        assert [one[::2] for one in room.exits()] == [(40, ExitKind.PREEMPTED)] * 2
        assert room.kept == [30]

    run_simulation(story)


def test_when_the_grace_is_over_it_is_killed_and_what_it_did_since_its_last_checkpoint_is_lost() -> None:
    async def story() -> None:
        room = Room(100, save_s=10, checkpoint_every_s=20)
        await room.launch()
        await room.until(35)
        await room.engine.stop(ATTEMPT, grace=timedelta(seconds=3), preempt=True)
        await room.until(200)
        assert room.saved == [(20, 20_000_000)]
        assert room.exits()[0] == (38, 0, ExitKind.PREEMPTED)
        assert room.kept == [20]

    run_simulation(story)


def test_a_stop_comes_at_once_even_while_it_saves() -> None:
    async def story() -> None:
        room = Room(100, save_s=10)
        await room.launch()
        await room.until(30)
        await room.engine.stop(ATTEMPT, grace=timedelta(seconds=60), preempt=True)
        await room.until(32)
        await room.engine.stop(ATTEMPT, grace=timedelta(seconds=60))
        await room.until(200)
        assert room.exits()[0] == (32, 0, ExitKind.STOPPED)
        await room.engine.stop(ATTEMPT, grace=timedelta(0))  # over already
        await room.engine.stop(AttemptId("nobody.1"), grace=timedelta(0))
        assert len(room.exits()) == 2

    run_simulation(story)


def test_a_time_limit_ends_it() -> None:
    async def story() -> None:
        room = Room(100, start_s=5)
        await room.launch(limit_s=50)
        await room.until(200)
        assert room.exits()[0] == (55, 0, ExitKind.TIME_LIMIT)

    run_simulation(story)


def test_half_of_the_replicas_take_twice_as_long() -> None:
    async def story() -> None:
        room = Room(100)
        await room.launch(replicas=1)
        await room.until(300)
        assert room.exits() == [(200, 0, ExitKind.EXIT_CODE)]

    run_simulation(story)


def test_a_lost_machine_takes_the_whole_gang_with_it() -> None:
    async def story() -> None:
        room = Room(100)
        await room.launch()
        await room.until(30)
        await room.engine.lose_node(NodeId("n1"))
        assert room.exits() == [(30, 0, ExitKind.LOST), (30, 1, ExitKind.LOST)]
        assert [one.ready for one in (await room.engine.observe()).nodes] == [True, False]
        await room.engine.forget(ATTEMPT)
        with pytest.raises(LaunchFailed):
            await room.launch()
        await room.engine.return_node(NodeId("n1"))
        await room.launch()
        await room.until(131)
        assert room.exits()[-1] == (130, 1, ExitKind.EXIT_CODE)

    run_simulation(story)

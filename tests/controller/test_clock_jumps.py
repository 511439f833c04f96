"""A server whose clock is set forward or back by an hour while runs run, wait, end and make room; the
engine's time goes on evenly."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hopyard.controller.clock import CLOCK_CHECK_INTERVAL_S
from hopyard.domain.ids import AttemptId, RunId, attempt_id
from hopyard.domain.run import RunEventKind, RunPhase
from hopyard.testing.clock import ManualClock
from hopyard.testing.fake_engine import ReplicaScript
from tests.controller.world import World

TTL = timedelta(seconds=15)
HOUR = timedelta(hours=1)
jumps = pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])


class Set:
    """As `SystemClock`, over a clock that runs evenly: whoever sleeps wakes when it says so, looked at once a
    minute, or when as long has passed as that was to take."""

    def __init__(self, even: ManualClock) -> None:
        self._even, self.off = even, timedelta(0)

    def now(self) -> datetime:
        return self._even.now() + self.off

    async def sleep_until(self, when: datetime, /) -> None:
        deadline = self._even.now() + (when - self.now())
        while True:
            left = min(when - self.now(), deadline - self._even.now())
            await self._even.sleep_until(
                self._even.now() + min(left, timedelta(seconds=CLOCK_CHECK_INTERVAL_S))
            )
            if left <= timedelta(seconds=CLOCK_CHECK_INTERVAL_S) and min(
                when - self.now(), deadline - self._even.now()
            ) <= timedelta(0):
                return


class Jumping(World):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, fate=self._fate)
        self.server_clock = self.set = Set(self.clock)
        self.fates: dict[RunId, ReplicaScript] = {}

    def _fate(self, attempt: AttemptId, _rank: int) -> ReplicaScript:
        return self.fates.get(RunId(attempt.rpartition(".")[0]), ReplicaScript())

    async def submit_as(self, fate: ReplicaScript, **asked: int) -> RunId:
        """Its fate is known before it starts."""
        self.fates[RunId(f"run-{self._next + 1:06d}")] = fate
        return await self.submit(**asked)


def play(tmp_path: Path, scene: object) -> None:
    async def whole() -> None:
        world = Jumping(tmp_path)
        try:
            world.start()
            await world.settle()
            await scene(world)  # type: ignore[operator]
        finally:
            await world.close()

    asyncio.run(whole())


@jumps
def test_what_runs_and_what_waits_go_on(tmp_path: Path, jump: timedelta) -> None:
    async def scene(world: Jumping) -> None:
        runs = [await world.submit(gpus=4), await world.submit(gpus=4), await world.submit(gpus=2)]
        await world.advance(timedelta(seconds=4))
        led = await world.cluster.acquire_lease("server", now=world.set.now(), ttl=TTL)
        world.set.off += jump
        await world.until(lambda: world.final(runs[0]), within=timedelta(seconds=10))
        assert await world.cluster.acquire_lease("another", now=world.set.now(), ttl=TTL) is None
        for run in runs:  # each follows the one before it, at the engine's pace
            await world.until(lambda run=run: world.final(run), within=timedelta(seconds=14))  # type: ignore[misc]
            assert (await world.runs.get(run)).phase is RunPhase.SUCCEEDED
        assert world.engine.started_attempts == [attempt_id(run, 1) for run in runs]
        assert (await world.cluster.acquire_lease("server", now=world.set.now(), ttl=TTL)).epoch == led.epoch
        for run in runs:
            (attempt,) = await world.runs.attempts(run)
            assert attempt.started_at is not None
            assert attempt.ended_at is not None

    play(tmp_path, scene)


@jumps
def test_who_is_asked_to_end_has_its_grace_and_no_more(tmp_path: Path, jump: timedelta) -> None:
    async def scene(world: Jumping) -> None:
        run = await world.submit_as(ReplicaScript(run_time=timedelta(hours=5), ignores_stop=True))
        await world.advance(timedelta(seconds=5))
        await world.controller.stop(run, grace=timedelta(seconds=30))
        await world.settle()
        world.set.off += jump
        await world.advance(timedelta(seconds=25))
        assert (await world.runs.get(run)).phase is RunPhase.STOPPING
        await world.advance(timedelta(seconds=10))
        assert (await world.runs.get(run)).phase is RunPhase.CANCELLED

    play(tmp_path, scene)


@jumps
def test_who_was_promised_a_start_starts_when_there_is_room(tmp_path: Path, jump: timedelta) -> None:
    async def scene(world: Jumping) -> None:
        before = await world.submit_as(ReplicaScript(run_time=timedelta(seconds=60)), gpus=3)
        await world.advance(timedelta(seconds=2))
        large = await world.submit(gpus=4)
        await world.advance(timedelta(seconds=2))
        assert large in {
            promise.gang for promise in (await world.cluster.snapshot(now=world.set.now())).promises.values()
        }
        # they would be in its way
        small = [
            await world.submit_as(ReplicaScript(run_time=timedelta(seconds=90)), gpus=1) for _ in range(3)
        ]
        await world.settle()
        world.set.off += jump
        await world.until(lambda: world.final(large), within=timedelta(minutes=2))
        assert world.engine.started_attempts[:2] == [attempt_id(before, 1), attempt_id(large, 1)]
        kinds = [event.kind for event in await world.runs.events(large)]
        assert RunEventKind.PROMISED in kinds
        for run in small:
            await world.until(lambda run=run: world.final(run), within=timedelta(minutes=10))  # type: ignore[misc]

    play(tmp_path, scene)


@jumps
def test_who_makes_room_for_another_goes_on_afterwards(tmp_path: Path, jump: timedelta) -> None:
    async def scene(world: Jumping) -> None:
        victim = await world.submit_as(
            ReplicaScript(run_time=timedelta(minutes=3), save_time=timedelta(seconds=20)), gpus=4, priority=10
        )
        await world.advance(timedelta(seconds=5))
        urgent = await world.submit(gpus=4, priority=90)
        await world.settle()
        assert (await world.runs.get(victim)).phase is RunPhase.STOPPING
        world.set.off += jump
        await world.until(lambda: world.final(urgent), within=timedelta(seconds=45))
        await world.until(lambda: world.final(victim), within=timedelta(minutes=5))
        assert world.engine.started_attempts == [
            attempt_id(victim, 1),
            attempt_id(urgent, 1),
            attempt_id(victim, 2),
        ]

    play(tmp_path, scene)


@jumps
def test_the_next_server_need_not_wait_for_the_clock(tmp_path: Path, jump: timedelta) -> None:
    async def scene(world: Jumping) -> None:
        await world.submit()
        await world.advance(timedelta(seconds=2))
        await world.crash()
        world.set.off += jump
        assert await world.cluster.acquire_lease("another", now=world.set.now(), ttl=TTL) is not None

    play(tmp_path, scene)

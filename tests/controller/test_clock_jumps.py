"""A server whose clock is set forward or back by an hour, with running, pending, ending and preempted runs;
the engine's clock does not jump."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hopyard.controller.clock import CLOCK_CHECK_INTERVAL_S
from hopyard.domain.ids import AttemptId, RunId, attempt_id
from hopyard.domain.replica import StopOrder
from hopyard.domain.run import RunEventKind, RunPhase
from hopyard.testing.clock import ManualClock
from hopyard.testing.fake_engine import ReplicaScript
from tests.controller.controller_harness import ControllerHarness

TTL = timedelta(seconds=15)
HOUR = timedelta(hours=1)
jumps = pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])


class AdjustableClock:
    """Like `SystemClock`, over a clock that never jumps.

    A sleeper wakes when this clock reaches its time (checked once a minute), or when the expected duration
    has passed.
    """

    def __init__(self, steady_clock: ManualClock) -> None:
        self._steady_clock, self.offset = steady_clock, timedelta(0)

    def now(self) -> datetime:
        return self._steady_clock.now() + self.offset

    async def sleep_until(self, when: datetime, /) -> None:
        deadline = self._steady_clock.now() + (when - self.now())
        while True:
            remaining = min(when - self.now(), deadline - self._steady_clock.now())
            await self._steady_clock.sleep_until(
                self._steady_clock.now() + min(remaining, timedelta(seconds=CLOCK_CHECK_INTERVAL_S))
            )
            if remaining <= timedelta(seconds=CLOCK_CHECK_INTERVAL_S) and min(
                when - self.now(), deadline - self._steady_clock.now()
            ) <= timedelta(0):
                return


class ClockJumpHarness(ControllerHarness):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, script_of=self._script_of)
        self.server_clock = self.adjustable_clock = AdjustableClock(self.clock)
        self.scripts: dict[RunId, ReplicaScript] = {}

    def _script_of(self, attempt: AttemptId, _rank: int) -> ReplicaScript:
        return self.scripts.get(RunId(attempt.rpartition(".")[0]), ReplicaScript())

    async def submit_with_script(self, script: ReplicaScript, **options: int) -> RunId:
        """Submits a run whose replicas follow this script."""
        self.scripts[RunId(f"run-{self._next + 1:06d}")] = script
        return await self.submit(**options)


def run_scenario(tmp_path: Path, scenario: object) -> None:
    async def run() -> None:
        harness = ClockJumpHarness(tmp_path)
        try:
            harness.start()
            await harness.settle()
            await scenario(harness)  # type: ignore[operator]
        finally:
            await harness.close()

    asyncio.run(run())


@jumps
def test_running_and_pending_runs_continue_after_a_clock_jump(tmp_path: Path, jump: timedelta) -> None:
    async def scenario(harness: ClockJumpHarness) -> None:
        runs = [await harness.submit(gpus=4), await harness.submit(gpus=4), await harness.submit(gpus=2)]
        await harness.advance(timedelta(seconds=4))
        led = await harness.cluster.acquire_lease("server", now=harness.adjustable_clock.now(), ttl=TTL)
        harness.adjustable_clock.offset += jump
        await harness.advance_until(lambda: harness.is_final(runs[0]), within=timedelta(seconds=10))
        assert (
            await harness.cluster.acquire_lease("another", now=harness.adjustable_clock.now(), ttl=TTL)
            is None
        )
        for run in runs:  # one after the other, at the engine's pace
            await harness.advance_until(lambda run=run: harness.is_final(run), within=timedelta(seconds=14))  # type: ignore[misc]
            assert (await harness.runs.get(run)).phase is RunPhase.SUCCEEDED
        assert harness.engine.started_attempts == [attempt_id(run, 1) for run in runs]
        assert (
            await harness.cluster.acquire_lease("server", now=harness.adjustable_clock.now(), ttl=TTL)
        ).epoch == led.epoch
        for run in runs:
            (attempt,) = await harness.runs.attempts(run)
            assert attempt.started_at is not None
            assert attempt.ended_at is not None

    run_scenario(tmp_path, scenario)


@jumps
def test_stop_grace_does_not_change_with_a_clock_jump(tmp_path: Path, jump: timedelta) -> None:
    async def scenario(harness: ClockJumpHarness) -> None:
        run = await harness.submit_with_script(ReplicaScript(run_time=timedelta(hours=5), ignores_stop=True))
        await harness.advance(timedelta(seconds=5))
        await harness.controller.stop(run, StopOrder(30.0))
        await harness.settle()
        harness.adjustable_clock.offset += jump
        await harness.advance(timedelta(seconds=25))
        assert (await harness.runs.get(run)).phase is RunPhase.STOPPING
        await harness.advance(timedelta(seconds=10))
        assert (await harness.runs.get(run)).phase is RunPhase.CANCELLED

    run_scenario(tmp_path, scenario)


@jumps
def test_promised_run_starts_after_a_clock_jump(tmp_path: Path, jump: timedelta) -> None:
    async def scenario(harness: ClockJumpHarness) -> None:
        before = await harness.submit_with_script(ReplicaScript(run_time=timedelta(seconds=60)), gpus=3)
        await harness.advance(timedelta(seconds=2))
        large = await harness.submit(gpus=4)
        await harness.advance(timedelta(seconds=2))
        assert large in {
            promise.gang
            for promise in (
                await harness.cluster.snapshot(now=harness.adjustable_clock.now())
            ).promises.values()
        }
        # they would be in its way
        small = [
            await harness.submit_with_script(ReplicaScript(run_time=timedelta(seconds=90)), gpus=1)
            for _ in range(3)
        ]
        await harness.settle()
        harness.adjustable_clock.offset += jump
        await harness.advance_until(lambda: harness.is_final(large), within=timedelta(minutes=2))
        assert harness.engine.started_attempts[:2] == [attempt_id(before, 1), attempt_id(large, 1)]
        kinds = [event.kind for event in await harness.runs.events(large)]
        assert RunEventKind.PROMISED in kinds
        for run in small:
            await harness.advance_until(lambda run=run: harness.is_final(run), within=timedelta(minutes=10))  # type: ignore[misc]

    run_scenario(tmp_path, scenario)


@jumps
def test_preempted_run_resumes_after_a_clock_jump(tmp_path: Path, jump: timedelta) -> None:
    async def scenario(harness: ClockJumpHarness) -> None:
        victim = await harness.submit_with_script(
            ReplicaScript(run_time=timedelta(minutes=3), save_time=timedelta(seconds=20)), gpus=4, priority=10
        )
        await harness.advance(timedelta(seconds=5))
        urgent = await harness.submit(gpus=4, priority=90)
        await harness.settle()
        assert (await harness.runs.get(victim)).phase is RunPhase.STOPPING
        harness.adjustable_clock.offset += jump
        await harness.advance_until(lambda: harness.is_final(urgent), within=timedelta(seconds=45))
        await harness.advance_until(lambda: harness.is_final(victim), within=timedelta(minutes=5))
        assert harness.engine.started_attempts == [
            attempt_id(victim, 1),
            attempt_id(urgent, 1),
            attempt_id(victim, 2),
        ]

    run_scenario(tmp_path, scenario)


@jumps
def test_next_server_gets_the_lease_after_a_clock_jump(tmp_path: Path, jump: timedelta) -> None:
    async def scenario(harness: ClockJumpHarness) -> None:
        await harness.submit()
        await harness.advance(timedelta(seconds=2))
        await harness.crash()
        harness.adjustable_clock.offset += jump
        assert (
            await harness.cluster.acquire_lease("another", now=harness.adjustable_clock.now(), ttl=TTL)
            is not None
        )

    run_scenario(tmp_path, scenario)

"""Thousands of virtual hours with server crashes at random points.

Laws: no run is lost or started twice, no node is overcommitted (the engine checks both at every start), and
every run ends as its script says. For more seeds: HOPYARD_SIMULATIONS=200 pytest
tests/controller/test_random_crashes.py
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from hopyard.domain.attempt import Exit, ExitKind, ReplicaPhase
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.replica import StopOrder
from hopyard.domain.run import RunPhase
from hopyard.testing.fake_engine import FINISHED, ReplicaScript
from tests.controller.controller_harness import ControllerHarness

RUNS, MAX_ATTEMPTS = 60, 3
ENDS = [
    *[FINISHED] * 6,
    Exit(ExitKind.EXIT_CODE, 2, "exit code 2"),
    Exit(ExitKind.OUT_OF_MEMORY, 137, "out of memory"),
    Exit(ExitKind.LOST, 1, "vanished"),
]


class CrashScenario:
    """One seeded scenario of a server with crashes."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.harness = ControllerHarness(
            folder, script_of=self.script_of, observe_interval=timedelta(minutes=5)
        )
        self.stopped: set[RunId] = set()
        self.runs: list[RunId] = []
        self.vanished: Counter[AttemptId] = Counter()

    def script_of(self, attempt: AttemptId, rank: int) -> ReplicaScript:
        mine = random.Random(f"{self.seed} {attempt} {rank}")
        return ReplicaScript(
            prepare_time=timedelta(minutes=mine.uniform(0, 20)),
            run_time=timedelta(hours=mine.expovariate(1 / 3)),
            exit=mine.choice(ENDS),
            fails_launch=mine.random() < 0.03,
            ignores_stop=mine.random() < 0.3,
        )

    async def act_once(self) -> None:
        """Applies one random event."""
        harness, chance = self.harness, self.chance
        match chance.choices(["submit", "stop", "crash", "news", "vanish", "pass"], [5, 1, 2, 6, 0.5, 6])[0]:
            case "submit" if len(self.runs) < RUNS:
                shape = {
                    "gpus": chance.choice([0, 0, 1, 2, 4]),
                    "replicas": chance.choice([1, 1, 1, 2, 4]),
                    "cpu_milli": chance.choice([500, 1000, 2000]),
                }
                if shape["gpus"] * shape["replicas"] > 4:
                    shape["replicas"] = 1
                self.runs.append(
                    await harness.submit(max_attempts=MAX_ATTEMPTS, priority=chance.randrange(101), **shape)
                )
            case "stop" if self.runs:
                run = chance.choice(self.runs)
                if not await harness.is_final(run):
                    self.stopped.add(run)
                    await harness.controller.stop(run, StopOrder(60 * chance.uniform(0, 30)))
            case "crash":
                for _ in range(chance.randrange(40)):  # at any point of its work
                    await asyncio.sleep(0)
                await harness.crash()
                if chance.random() < 0.5:
                    self.pass_time(chance.expovariate(1 / 4))
                harness.start()
            case "news":
                await self.report()
            case "vanish" if chance.random() < 0.2 and harness.engine.live_attempts():
                lost = chance.choice(harness.engine.live_attempts())
                self.vanished[lost] += 1
                harness.engine.lose_attempt(lost)
            case _:
                await harness.advance(timedelta(hours=chance.expovariate(1 / 2)))

    def pass_time(self, hours: float) -> None:
        """Lets time pass without a server."""
        self.harness.clock.advance(timedelta(hours=hours))

    async def report(self) -> None:
        """Sends statuses of replicas: some are lost, some arrive late or twice."""
        for attempt in list(self.harness.engine.launches):
            if self.chance.random() < 0.3 and attempt in self.harness.engine._replicas:
                for status in self.harness.engine.status(attempt).replicas:
                    if self.chance.random() < 0.7:
                        await self.harness.controller.record_status(attempt, status)

    async def check(self) -> None:
        for run_id in self.runs:
            run = await self.harness.runs.get(run_id)
            attempts = await self.harness.runs.attempts(run_id)
            assert [a.number for a in attempts] == list(range(1, len(attempts) + 1))
            faults = sum(
                attempt.exit is not None and attempt.exit.kind is ExitKind.NODE_FAULT for attempt in attempts
            )
            assert sum(not attempt.preempt_reason for attempt in attempts) - faults <= MAX_ATTEMPTS
            assert run.phase.is_final, f"{run_id} is {run.phase}"
            if run.phase is RunPhase.CANCELLED:
                assert run_id in self.stopped
            if run.phase is RunPhase.SUCCEEDED:
                last = attempts[-1].id
                assert all(self.script_of(last, rank).exit.is_success for rank in range(run.spec.size))
        # Nothing twice. Only an attempt of which every trace vanished may be started again, once for each
        # time that it vanished; that no two of a run are ever alive together is checked by the engine at
        # every start.
        starts = Counter(self.harness.engine.started_attempts)
        assert {attempt for attempt, times in starts.items() if times > 1 + self.vanished[attempt]} == set()

    async def run_all(self) -> None:
        harness = self.harness
        try:
            harness.start()
            await harness.settle()
            while len(self.runs) < RUNS:
                await self.act_once()
            for _ in range(400):
                await harness.advance(timedelta(hours=6))
                if not harness.engine.live_attempts() and all(
                    [await harness.is_final(run) for run in self.runs]
                ):
                    break
            await self.check()
            await harness.advance(timedelta(hours=1))
            assert not harness.engine._replicas, "the engine was not asked to forget the attempt"
            assert not any(
                status.phase is ReplicaPhase.RUNNING
                for a in harness.engine._replicas
                for status in harness.engine.status(a).replicas
            )
        finally:
            await harness.close()


@pytest.mark.parametrize("seed", range(int(os.environ.get("HOPYARD_SIMULATIONS", "3"))))
def test_every_run_ends_once_despite_random_crashes(tmp_path: Path, seed: int) -> None:
    asyncio.run(CrashScenario(tmp_path, seed).run_all())

"""What was submitted through a server is known there when it starts; all else is read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hopyard.controller import launcher
from hopyard.domain.ids import RunId
from hopyard.domain.run import Run, RunPhase
from hopyard.interfaces.run_store import RunFilter
from hopyard.testing.fake_engine import ReplicaScript
from tests.controller.controller_harness import ControllerHarness, run_scenario


class Noting:
    """A run store that notes which runs were read together. `read` is cleared by whoever looks."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.read: list[RunId] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def list(self, where: RunFilter) -> Sequence[Run]:
        self.read += sorted(where.ids or ())
        found: Sequence[Run] = await self._inner.list(where)
        return found


def started(harness: ControllerHarness) -> Noting:
    harness.runs = noting = Noting(harness.runs)
    harness.start()
    return noting


async def running(harness: ControllerHarness, run: RunId) -> bool:
    return (await harness.runs.get(run)).phase is RunPhase.RUNNING


def long(_attempt: object, _rank: int) -> ReplicaScript:
    return ReplicaScript(run_time=timedelta(hours=9))


def test_who_came_through_this_server_is_not_read_to_be_started_and_others_are(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        noting = started(harness)
        here = [await harness.submit() for _ in range(3)]
        await harness.advance(timedelta(seconds=2))
        assert all([await running(harness, run) for run in here])
        assert noting.read == []
        elsewhere = await harness.submit(wake=False)
        here.append(await harness.submit())
        await harness.advance(timedelta(seconds=2))
        assert await running(harness, elsewhere) and await running(harness, here[-1])
        assert noting.read == [elsewhere]
        commands = {
            launch.replicas[0].run: launch.replicas[0].command for launch in harness.engine.launches.values()
        }
        assert commands == dict.fromkeys([*here, elsewhere], ("python", "x.py"))

    run_scenario(tmp_path, scenario, long)


def test_who_starts_again_is_read_anew(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        noting = started(harness)
        run = await harness.submit()
        await harness.settle()
        assert noting.read == []
        await harness.controller.preempt(run, "to see")
        await harness.advance(timedelta(minutes=2))
        assert await running(harness, run) and (await harness.runs.get(run)).preemptions == 1
        assert set(noting.read) == {run}

    run_scenario(tmp_path, scenario, long)


def test_of_very_many_only_some_are_remembered_and_nobody_who_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "MAX_CACHED_RUNS", 1)

    async def scenario(harness: ControllerHarness) -> None:
        noting = started(harness)
        holds = await harness.submit(gpus=4)
        await harness.settle()
        stopped = await harness.submit(gpus=4)
        await harness.controller.stop(stopped)
        noting.read.clear()  # whoever is told of its end reads it
        first, second = await harness.submit(gpus=4), await harness.submit(gpus=4)
        await harness.controller.stop(holds)
        await harness.advance_until(lambda: running(harness, first))
        assert first not in noting.read
        await harness.controller.stop(first)
        noting.read.clear()
        await harness.advance_until(lambda: running(harness, second))
        assert second in noting.read

    run_scenario(tmp_path, scenario, long)


def test_runs_of_megabytes_are_read_when_they_start_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "MAX_CACHED_RUN_BYTES", 5000)

    async def scenario(harness: ControllerHarness) -> None:
        noting = started(harness)
        holds = await harness.submit(gpus=4)
        await harness.settle()
        large = await harness.submit(gpus=4, env={"K": "v" * 10_000})
        small = await harness.submit(gpus=4)
        noting.read.clear()
        await harness.controller.stop(holds)
        await harness.advance_until(lambda: running(harness, large))
        assert large in noting.read
        await harness.controller.stop(large)
        noting.read.clear()
        await harness.advance_until(lambda: running(harness, small))
        assert small not in noting.read

    run_scenario(tmp_path, scenario, long)

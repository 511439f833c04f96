"""A server starts the runs submitted to it without reading them; all others are read."""

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


class ReadRecorder:
    """A run store that records which runs were read together. Tests clear `read`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.read: list[RunId] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def list(self, where: RunFilter) -> Sequence[Run]:
        self.read += sorted(where.ids or ())
        result: Sequence[Run] = await self._inner.list(where)
        return result


def start_recording(harness: ControllerHarness) -> ReadRecorder:
    harness.runs = recorder = ReadRecorder(harness.runs)
    harness.start()
    return recorder


async def is_running(harness: ControllerHarness, run: RunId) -> bool:
    return (await harness.runs.get(run)).phase is RunPhase.RUNNING


def long_script(_attempt: object, _rank: int) -> ReplicaScript:
    return ReplicaScript(run_time=timedelta(hours=9))


def test_runs_submitted_to_this_server_start_without_a_read(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        recorder = start_recording(harness)
        own_runs = [await harness.submit() for _ in range(3)]
        await harness.advance(timedelta(seconds=2))
        assert all([await is_running(harness, run) for run in own_runs])
        assert recorder.read == []
        elsewhere = await harness.submit(wake=False)
        own_runs.append(await harness.submit())
        await harness.advance(timedelta(seconds=2))
        assert await is_running(harness, elsewhere) and await is_running(harness, own_runs[-1])
        assert recorder.read == [elsewhere]
        commands = {
            launch.replicas[0].run: launch.replicas[0].command for launch in harness.engine.launches.values()
        }
        assert commands == dict.fromkeys([*own_runs, elsewhere], ("python", "x.py"))

    run_scenario(tmp_path, scenario, long_script)


def test_restarted_run_is_read_again(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        recorder = start_recording(harness)
        run = await harness.submit()
        await harness.settle()
        assert recorder.read == []
        await harness.controller.preempt(run, "to see")
        await harness.advance(timedelta(minutes=2))
        assert await is_running(harness, run) and (await harness.runs.get(run)).preemptions == 1
        assert set(recorder.read) == {run}

    run_scenario(tmp_path, scenario, long_script)


def test_submission_cache_is_bounded_and_drops_stopped_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "MAX_CACHED_RUNS", 1)

    async def scenario(harness: ControllerHarness) -> None:
        recorder = start_recording(harness)
        holds = await harness.submit(gpus=4)
        await harness.settle()
        stopped = await harness.submit(gpus=4)
        await harness.controller.stop(stopped)
        recorder.read.clear()  # the end callback reads it
        first, second = await harness.submit(gpus=4), await harness.submit(gpus=4)
        await harness.controller.stop(holds)
        await harness.advance_until(lambda: is_running(harness, first))
        assert first not in recorder.read
        await harness.controller.stop(first)
        recorder.read.clear()
        await harness.advance_until(lambda: is_running(harness, second))
        assert second in recorder.read

    run_scenario(tmp_path, scenario, long_script)


def test_large_runs_are_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "MAX_CACHED_RUN_BYTES", 5000)

    async def scenario(harness: ControllerHarness) -> None:
        recorder = start_recording(harness)
        holds = await harness.submit(gpus=4)
        await harness.settle()
        large = await harness.submit(gpus=4, env={"K": "v" * 10_000})
        small = await harness.submit(gpus=4)
        recorder.read.clear()
        await harness.controller.stop(holds)
        await harness.advance_until(lambda: is_running(harness, large))
        assert large in recorder.read
        await harness.controller.stop(large)
        recorder.read.clear()
        await harness.advance_until(lambda: is_running(harness, small))
        assert small not in recorder.read

    run_scenario(tmp_path, scenario, long_script)

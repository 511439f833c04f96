"""Python collects garbage between cycles: not before the decisions of a cycle have started, but never too
late."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hopyard.controller import gc_guard
from hopyard.controller.gc_guard import GcGuard
from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.run import RunPhase
from hopyard.scheduler.cycle.planner import Planner
from hopyard.testing.fake_engine import ReplicaScript
from tests.controller.controller_harness import ControllerHarness, run_scenario


@pytest.fixture(autouse=True)
def _collects() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_on else gc.disable)()


def test_collection_resumes_after_started_tasks_run() -> None:
    async def run_cycles() -> None:
        guard = GcGuard()
        seen: list[bool] = []
        guard.pause()
        asyncio.get_running_loop().call_soon(
            lambda: seen.append(gc.isenabled())
        )  # a task that this cycle starts
        guard.resume()
        assert not gc.isenabled()
        await asyncio.sleep(0)
        assert seen == [False]
        assert gc.isenabled()

        guard.pause()
        guard.resume()
        guard.pause()  # the next cycle follows at once
        await asyncio.sleep(0)
        assert not gc.isenabled()
        guard.resume()
        await asyncio.sleep(0)
        assert gc.isenabled()

    asyncio.run(run_cycles())


def test_collection_resumes_during_continuous_or_endless_cycles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc_guard, "MAX_PAUSE_S", 0.01)

    async def run_cycles() -> None:
        guard = GcGuard()
        guard.pause()
        async with asyncio.timeout(10):
            while not gc.isenabled():  # noqa: ASYNC110 - nothing notifies
                await asyncio.sleep(0.001)
        guard.resume()
        await asyncio.sleep(0)
        assert gc.isenabled()

    asyncio.run(run_cycles())


def test_collection_resumes_after_a_closed_event_loop() -> None:
    guard = GcGuard()

    async def run_cycle() -> None:
        guard.pause()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            guard.resume()

    async def step(coroutine: Any) -> None:
        coroutine.send(None)

    begun = run_cycle()
    asyncio.run(step(begun))
    assert not gc.isenabled()
    begun.close()
    assert gc.isenabled()


def test_disabled_collection_stays_disabled() -> None:
    async def run_cycles() -> None:
        gc.disable()
        guard = GcGuard()
        guard.pause()
        guard.resume()
        await asyncio.sleep(0)
        assert not gc.isenabled()

    asyncio.run(run_cycles())


def test_controller_pauses_collection_during_cycles_only(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []

    class RecordingPlanner(Planner):
        def __call__(self, snapshot: Snapshot, /) -> Plan:
            seen.append(("thinks", gc.isenabled()))
            return super().__call__(snapshot)

    class Store:
        def __init__(self, inner: Any) -> None:
            self._inner, self.fails = inner, True

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def apply(self, plan: Plan, /, **kwargs: Any) -> Any:
            result = await self._inner.apply(plan, **kwargs)
            seen.append(("applied", gc.isenabled()))
            if self.fails:
                self.fails = False
                raise RuntimeError("the store broke down")
            return result

    async def scenario(harness: ControllerHarness) -> None:
        harness.new_policy, harness.cluster = RecordingPlanner, Store(harness.cluster)
        harness.start()
        await harness.settle()
        run = await harness.submit(gpus=4)
        await harness.settle()
        assert seen == [("thinks", False), ("applied", False)]
        assert gc.isenabled()  # although the cycle failed
        await harness.advance(timedelta(seconds=5))
        assert (await harness.runs.get(run)).phase is RunPhase.RUNNING
        assert not any(on for _, on in seen)
        assert gc.isenabled()

    run_scenario(tmp_path, scenario, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=1)))

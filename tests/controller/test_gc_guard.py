"""Python looks for garbage between turns, never before what a turn decided is under way, and never not at
all."""

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


def test_it_looks_again_once_all_that_was_begun_is_under_way() -> None:
    async def turns() -> None:
        found = GcGuard()
        seen: list[bool] = []
        found.pause()
        asyncio.get_running_loop().call_soon(lambda: seen.append(gc.isenabled()))  # what this turn starts
        found.resume()
        assert not gc.isenabled()
        await asyncio.sleep(0)
        assert seen == [False]
        assert gc.isenabled()

        found.pause()
        found.resume()
        found.pause()  # the next turn follows at once
        await asyncio.sleep(0)
        assert not gc.isenabled()
        found.resume()
        await asyncio.sleep(0)
        assert gc.isenabled()

    asyncio.run(turns())


def test_it_looks_again_though_one_turn_follows_the_other_or_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc_guard, "MAX_PAUSE_S", 0.01)

    async def turns() -> None:
        found = GcGuard()
        found.pause()
        async with asyncio.timeout(10):
            while not gc.isenabled():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
        found.resume()
        await asyncio.sleep(0)
        assert gc.isenabled()

    asyncio.run(turns())


def test_it_looks_again_though_the_loop_was_closed_in_the_middle_of_a_turn() -> None:
    found = GcGuard()

    async def turn() -> None:
        found.pause()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            found.resume()

    async def step(coroutine: Any) -> None:
        coroutine.send(None)

    begun = turn()
    asyncio.run(step(begun))
    assert not gc.isenabled()
    begun.close()
    assert gc.isenabled()


def test_where_it_is_off_it_stays_off() -> None:
    async def turns() -> None:
        gc.disable()
        found = GcGuard()
        found.pause()
        found.resume()
        await asyncio.sleep(0)
        assert not gc.isenabled()

    asyncio.run(turns())


def test_a_controller_decides_undisturbed_and_lets_it_look_while_nothing_happens(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []

    class Watched(Planner):
        def __call__(self, snapshot: Snapshot, /) -> Plan:
            seen.append(("thinks", gc.isenabled()))
            return super().__call__(snapshot)

    class Store:
        def __init__(self, inner: Any) -> None:
            self._inner, self.fails = inner, True

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def apply(self, plan: Plan, /, **given: Any) -> Any:
            result = await self._inner.apply(plan, **given)
            seen.append(("applied", gc.isenabled()))
            if self.fails:
                self.fails = False
                raise RuntimeError("the store broke down")
            return result

    async def scenario(harness: ControllerHarness) -> None:
        harness.new_policy, harness.cluster = Watched, Store(harness.cluster)
        harness.start()
        await harness.settle()
        run = await harness.submit(gpus=4)
        await harness.settle()
        assert seen == [("thinks", False), ("applied", False)]
        assert gc.isenabled()  # although the turn failed
        await harness.advance(timedelta(seconds=5))
        assert (await harness.runs.get(run)).phase is RunPhase.RUNNING
        assert not any(on for _, on in seen)
        assert gc.isenabled()

    run_scenario(tmp_path, scenario, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=1)))

"""Engines that tell when something changed: it is taken up at once, and decided on once it is written
down."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from hopyard.controller import controller
from hopyard.domain.ids import RunId, attempt_id
from hopyard.domain.run import Run, RunPhase
from hopyard.testing.fake_engine import FakeEngine
from tests.controller.controller_harness import NODES, ControllerHarness, GatedStore, run_scenario


class Telling(FakeEngine):
    """Tells that something changed whenever `changed` is set."""

    changed: asyncio.Event

    async def wait_for_change(self) -> None:
        await self.changed.wait()
        self.changed.clear()


def test_what_an_engine_tells_of_is_taken_up_at_once(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.engine = engine = Telling(harness.clock, NODES, harness.engine.script_of)
        engine.changed = asyncio.Event()
        harness.observe_interval = timedelta(hours=1)
        harness.start()
        await harness.settle()
        first, second = await harness.submit(gpus=4), await harness.submit(gpus=4)
        await harness.advance(timedelta(seconds=11))  # the first one is over, and nobody knows
        assert engine.started_attempts == [attempt_id(first, 1)]
        engine.changed.set()
        await harness.settle()
        assert (await harness.runs.get(first)).phase is RunPhase.SUCCEEDED
        assert engine.forgotten == [attempt_id(first, 1)]
        assert engine.started_attempts == [attempt_id(first, 1), attempt_id(second, 1)]

    run_scenario(tmp_path, scenario)


async def _full_and_over(harness: ControllerHarness) -> tuple[Telling, GatedStore, RunId]:
    """A cluster whose only run is over, which nobody has told yet, and the run that waits for it."""
    harness.engine = engine = Telling(harness.clock, NODES, harness.engine.script_of)
    engine.changed = asyncio.Event()
    harness.cluster = store = GatedStore(harness.cluster)
    harness.observe_interval = timedelta(hours=1)
    harness.start()
    await harness.settle()
    await harness.submit(gpus=4)
    second = await harness.submit(gpus=4)
    await harness.advance(timedelta(seconds=11))
    store.calls.clear()
    store.called["record"].clear()
    store.called["snapshot"].clear()
    store.writes_allowed.clear()
    engine.changed.set()
    await store.called["record"].wait()
    return engine, store, second


def test_who_decides_waits_for_what_ended_to_be_written_down(tmp_path: Path) -> None:
    """Else a plan without it is made first, and the one with it later."""

    async def scenario(harness: ControllerHarness) -> None:
        engine, store, second = await _full_and_over(harness)
        harness.controller.request_cycle()
        await harness.settle()
        assert store.calls == ["record"]
        store.writes_allowed.set()
        await harness.settle()
        assert store.calls[:3] == ["record", "recorded", "snapshot"]
        assert attempt_id(second, 1) in engine.started_attempts

    run_scenario(tmp_path, scenario)


def test_who_decides_does_not_wait_long_for_what_ended(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        engine, store, second = await _full_and_over(harness)
        harness.controller.request_cycle()
        await store.called["snapshot"].wait()
        assert "recorded" not in store.calls
        store.writes_allowed.set()
        await harness.settle()
        assert attempt_id(second, 1) in engine.started_attempts

    run_scenario(tmp_path, scenario)


def test_who_is_told_of_an_end_hears_it_once_its_place_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "MAX_OBSERVATION_WAIT_S", 60.0)

    async def scenario(harness: ControllerHarness) -> None:
        engine, store, second = await _full_and_over(harness)
        store.reads_allowed.clear()
        store.writes_allowed.set()
        await store.called["snapshot"].wait()
        await harness.settle()
        assert harness.ended == []
        store.reads_allowed.set()
        await harness.settle()
        assert harness.ended == [RunId("run-000001")] and attempt_id(second, 1) in engine.started_attempts

    run_scenario(tmp_path, scenario)


def test_who_is_told_of_an_end_does_not_wait_long_for_a_turn(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        told = asyncio.Event()

        async def tell(_: Run) -> None:
            told.set()

        harness.on_ended = tell
        engine, store, second = await _full_and_over(harness)
        store.reads_allowed.clear()
        store.writes_allowed.set()
        await told.wait()
        assert (
            store.calls == ["record", "recorded", "snapshot"]
            and attempt_id(second, 1) not in engine.started_attempts
        )
        store.reads_allowed.set()
        await harness.settle()
        assert attempt_id(second, 1) in engine.started_attempts

    run_scenario(tmp_path, scenario)


def test_what_an_engine_does_not_tell_of_is_seen_when_it_is_asked(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.engine = engine = Telling(harness.clock, NODES, harness.engine.script_of)
        engine.changed = asyncio.Event()
        harness.start()
        run = await harness.submit()
        await harness.advance_until(lambda: harness.is_final(run), within=timedelta(seconds=15))
        lost = await harness.submit()
        await harness.advance(timedelta(seconds=3))
        engine.lose_attempt(attempt_id(lost, 1))
        engine.changed.set()
        await harness.settle()
        assert (await harness.runs.get(lost)).attempt.number == 2

    run_scenario(tmp_path, scenario)

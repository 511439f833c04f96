"""Engines with change notifications: the controller observes at once, and plans after the observation is
stored."""

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


class NotifyingEngine(FakeEngine):
    """An engine that notifies whenever `changed` is set."""

    changed: asyncio.Event

    async def wait_for_change(self) -> None:
        await self.changed.wait()
        self.changed.clear()


def test_engine_notification_is_processed_at_once(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.engine = engine = NotifyingEngine(harness.clock, NODES, harness.engine.script_of)
        engine.changed = asyncio.Event()
        harness.observe_interval = timedelta(hours=1)
        harness.start()
        await harness.settle()
        first, second = await harness.submit(gpus=4), await harness.submit(gpus=4)
        await harness.advance(
            timedelta(seconds=11)
        )  # the first run has ended, and the controller does not know it
        assert engine.started_attempts == [attempt_id(first, 1)]
        engine.changed.set()
        await harness.settle()
        assert (await harness.runs.get(first)).phase is RunPhase.SUCCEEDED
        assert engine.forgotten == [attempt_id(first, 1)]
        assert engine.started_attempts == [attempt_id(first, 1), attempt_id(second, 1)]

    run_scenario(tmp_path, scenario)


async def _full_node_with_ended_run(harness: ControllerHarness) -> tuple[NotifyingEngine, GatedStore, RunId]:
    """A cluster whose only run has ended, without a notification yet, and a pending run that waits for it."""
    harness.engine = engine = NotifyingEngine(harness.clock, NODES, harness.engine.script_of)
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


def test_cycle_waits_for_the_record_of_an_ended_run(tmp_path: Path) -> None:
    """Otherwise one plan would be made without it, and another one with it."""

    async def scenario(harness: ControllerHarness) -> None:
        engine, store, second = await _full_node_with_ended_run(harness)
        harness.controller.request_cycle()
        await harness.settle()
        assert store.calls == ["record"]
        store.writes_allowed.set()
        await harness.settle()
        assert store.calls[:3] == ["record", "recorded", "snapshot"]
        assert attempt_id(second, 1) in engine.started_attempts

    run_scenario(tmp_path, scenario)


def test_cycle_wait_for_a_record_is_limited(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        engine, store, second = await _full_node_with_ended_run(harness)
        harness.controller.request_cycle()
        await store.called["snapshot"].wait()
        assert "recorded" not in store.calls
        store.writes_allowed.set()
        await harness.settle()
        assert attempt_id(second, 1) in engine.started_attempts

    run_scenario(tmp_path, scenario)


def test_end_callback_follows_the_cycle_that_refills_the_capacity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "MAX_OBSERVATION_WAIT_S", 60.0)

    async def scenario(harness: ControllerHarness) -> None:
        engine, store, second = await _full_node_with_ended_run(harness)
        store.reads_allowed.clear()
        store.writes_allowed.set()
        await store.called["snapshot"].wait()
        await harness.settle()
        assert harness.ended == []
        store.reads_allowed.set()
        await harness.settle()
        assert harness.ended == [RunId("run-000001")] and attempt_id(second, 1) in engine.started_attempts

    run_scenario(tmp_path, scenario)


def test_end_callback_wait_for_a_cycle_is_limited(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        result = asyncio.Event()

        async def record_end(_: Run) -> None:
            result.set()

        harness.on_ended = record_end
        engine, store, second = await _full_node_with_ended_run(harness)
        store.reads_allowed.clear()
        store.writes_allowed.set()
        await result.wait()
        assert (
            store.calls == ["record", "recorded", "snapshot"]
            and attempt_id(second, 1) not in engine.started_attempts
        )
        store.reads_allowed.set()
        await harness.settle()
        assert attempt_id(second, 1) in engine.started_attempts

    run_scenario(tmp_path, scenario)


def test_missed_notification_is_found_by_polling(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.engine = engine = NotifyingEngine(harness.clock, NODES, harness.engine.script_of)
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

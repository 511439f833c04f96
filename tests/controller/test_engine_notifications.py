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
from tests.controller.world import NODES, Gated, World, play


class Telling(FakeEngine):
    """Tells that something changed whenever `changed` is set."""

    changed: asyncio.Event

    async def wait_for_change(self) -> None:
        await self.changed.wait()
        self.changed.clear()


def test_what_an_engine_tells_of_is_taken_up_at_once(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.engine = engine = Telling(world.clock, NODES, world.engine.script_of)
        engine.changed = asyncio.Event()
        world.observe_every = timedelta(hours=1)
        world.start()
        await world.settle()
        first, second = await world.submit(gpus=4), await world.submit(gpus=4)
        await world.advance(timedelta(seconds=11))  # the first one is over, and nobody knows
        assert engine.started_attempts == [attempt_id(first, 1)]
        engine.changed.set()
        await world.settle()
        assert (await world.runs.get(first)).phase is RunPhase.SUCCEEDED
        assert engine.forgotten == [attempt_id(first, 1)]
        assert engine.started_attempts == [attempt_id(first, 1), attempt_id(second, 1)]

    play(tmp_path, scene)


async def _full_and_over(world: World) -> tuple[Telling, Gated, RunId]:
    """A cluster whose only run is over, which nobody has told yet, and the run that waits for it."""
    world.engine = engine = Telling(world.clock, NODES, world.engine.script_of)
    engine.changed = asyncio.Event()
    world.cluster = store = Gated(world.cluster)
    world.observe_every = timedelta(hours=1)
    world.start()
    await world.settle()
    await world.submit(gpus=4)
    second = await world.submit(gpus=4)
    await world.advance(timedelta(seconds=11))
    store.calls.clear()
    store.asked["record"].clear()
    store.asked["snapshot"].clear()
    store.gate.clear()
    engine.changed.set()
    await store.asked["record"].wait()
    return engine, store, second


def test_who_decides_waits_for_what_ended_to_be_written_down(tmp_path: Path) -> None:
    """Else a plan without it is made first, and the one with it later."""

    async def scene(world: World) -> None:
        engine, store, second = await _full_and_over(world)
        world.controller.request_cycle()
        await world.settle()
        assert store.calls == ["record"]
        store.gate.set()
        await world.settle()
        assert store.calls[:3] == ["record", "recorded", "snapshot"]
        assert attempt_id(second, 1) in engine.started_attempts

    play(tmp_path, scene)


def test_who_decides_does_not_wait_long_for_what_ended(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        engine, store, second = await _full_and_over(world)
        world.controller.request_cycle()
        await store.asked["snapshot"].wait()
        assert "recorded" not in store.calls
        store.gate.set()
        await world.settle()
        assert attempt_id(second, 1) in engine.started_attempts

    play(tmp_path, scene)


def test_who_is_told_of_an_end_hears_it_once_its_place_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "MAX_OBSERVATION_WAIT_S", 60.0)

    async def scene(world: World) -> None:
        engine, store, second = await _full_and_over(world)
        store.looking.clear()
        store.gate.set()
        await store.asked["snapshot"].wait()
        await world.settle()
        assert world.ended == []
        store.looking.set()
        await world.settle()
        assert world.ended == [RunId("run-000001")] and attempt_id(second, 1) in engine.started_attempts

    play(tmp_path, scene)


def test_who_is_told_of_an_end_does_not_wait_long_for_a_turn(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        told = asyncio.Event()

        async def tell(_: Run) -> None:
            told.set()

        world.when_ended = tell
        engine, store, second = await _full_and_over(world)
        store.looking.clear()
        store.gate.set()
        await told.wait()
        assert (
            store.calls == ["record", "recorded", "snapshot"]
            and attempt_id(second, 1) not in engine.started_attempts
        )
        store.looking.set()
        await world.settle()
        assert attempt_id(second, 1) in engine.started_attempts

    play(tmp_path, scene)


def test_what_an_engine_does_not_tell_of_is_seen_when_it_is_asked(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.engine = engine = Telling(world.clock, NODES, world.engine.script_of)
        engine.changed = asyncio.Event()
        world.start()
        run = await world.submit()
        await world.until(lambda: world.final(run), within=timedelta(seconds=15))
        lost = await world.submit()
        await world.advance(timedelta(seconds=3))
        engine.lose_attempt(attempt_id(lost, 1))
        engine.changed.set()
        await world.settle()
        assert (await world.runs.get(lost)).attempt.number == 2

    play(tmp_path, scene)

"""Expected starts, stored with the hold reasons."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from hopyard.controller import start_estimates
from hopyard.controller.start_estimates import StartEstimates
from hopyard.domain.cluster import Hold, Plan, Promise, Snapshot
from hopyard.domain.hold_causes import QueueBacklog
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, Version
from hopyard.domain.plan_record import HoldRecord
from hopyard.testing.clock import START_TIME as T0
from hopyard.testing.clock import ManualClock
from tests.controller.controller_harness import ControllerHarness, run_scenario

GANG, OTHER = GangId("g"), GangId("o")


def make_plan(*gangs: GangId, promised: tuple[GangId, ...] = (GANG,)) -> tuple[Snapshot, Plan]:
    holds = tuple(Hold(gang, QueueBacklog(2), 1) for gang in gangs)
    return Snapshot(Version(1), T0, {}), Plan(
        Version(1), (), holds, promises=tuple(Promise(gang, T0, T0) for gang in promised)
    )


class CountingForecast:
    """A forecast whose n-th start is n minutes after T0."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, snapshot: Snapshot, plan: Plan, /) -> Mapping[GangId, datetime]:
        self.made += 1
        return {promise.gang: T0 + timedelta(minutes=self.made) for promise in plan.promises}


def test_forecast_is_made_once_per_plan() -> None:
    forecast, clock, plan = CountingForecast(), ManualClock(), make_plan(GANG, OTHER)
    estimates = StartEstimates(forecast, clock)
    for _ in range(2):
        holds = asyncio.run(estimates.with_expected_starts(*plan))
        assert [hold.expected_at for hold in holds] == [T0 + timedelta(minutes=1), None]
    assert forecast.made == 1 and not estimates.is_due


def test_next_plan_keeps_earlier_estimates_until_its_own_are_due() -> None:
    """Of gangs that are still promised a start."""
    forecast, clock = CountingForecast(), ManualClock()
    estimates = StartEstimates(forecast, clock)
    asyncio.run(estimates.with_expected_starts(*make_plan(GANG)))
    newer, unpromised = make_plan(GANG), make_plan(GANG, promised=())
    assert [hold.expected_at for hold in asyncio.run(estimates.with_expected_starts(*newer))] == [
        T0 + timedelta(minutes=1)
    ] and estimates.is_due
    assert [hold.expected_at for hold in asyncio.run(estimates.with_expected_starts(*unpromised))] == [None]
    clock.advance(start_estimates.MAX_FORECAST_PAUSE)
    assert [hold.expected_at for hold in asyncio.run(estimates.with_expected_starts(*newer))] == [
        T0 + timedelta(minutes=2)
    ] and not estimates.is_due


def test_hold_reasons_are_stored_when_the_forecast_fails() -> None:
    def fails(snapshot: Snapshot, plan: Plan, /) -> Mapping[GangId, datetime]:
        raise ValueError("broken")

    holds = asyncio.run(StartEstimates(fails, ManualClock()).with_expected_starts(*make_plan(GANG)))
    assert list(holds) == [HoldRecord(GANG, HoldReason.BEHIND, "2 runs ahead of it", 1)]


def test_expected_start_is_stored_at_once_and_updated_soon(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        forecast = harness.forecast = CountingForecast()
        harness.start()
        await harness.settle()
        await harness.submit(gpus=4)
        second = await harness.submit(gpus=4)
        await harness.settle()
        first_made = forecast.made
        assert (await harness.runs.get(second)).expected_at == T0 + timedelta(minutes=first_made)
        await harness.submit(gpus=4)
        await harness.advance(timedelta(seconds=2))
        assert forecast.made > first_made
        assert (await harness.runs.get(second)).expected_at == T0 + timedelta(minutes=forecast.made)

    run_scenario(tmp_path, scenario)

"""Expected starts that are written down beside the reasons why runs wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from hopyard.controller import start_estimates
from hopyard.controller.start_estimates import StartEstimates
from hopyard.domain.cluster import Hold, HoldReason, Plan, Promise, Snapshot
from hopyard.domain.ids import GangId, Version
from hopyard.testing.clock import START_TIME as T0
from hopyard.testing.clock import ManualClock
from tests.controller.controller_harness import ControllerHarness, run_scenario

GANG, OTHER = GangId("g"), GangId("o")


def planned(*gangs: GangId, promised: tuple[GangId, ...] = (GANG,)) -> tuple[Snapshot, Plan]:
    holds = tuple(Hold(gang, HoldReason.BEHIND, "waits", 1) for gang in gangs)
    return Snapshot(Version(1), T0, {}), Plan(
        Version(1), (), holds, promises=tuple(Promise(gang, T0, T0) for gang in promised)
    )


class Forecasts:
    """Start number n is n minutes after T0."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, snapshot: Snapshot, plan: Plan, /) -> Mapping[GangId, datetime]:
        self.made += 1
        return {promise.gang: T0 + timedelta(minutes=self.made) for promise in plan.promises}


def test_a_forecast_is_made_once_for_a_plan() -> None:
    forecast, clock, plan = Forecasts(), ManualClock(), planned(GANG, OTHER)
    found = StartEstimates(forecast, clock)
    for _ in range(2):
        holds = asyncio.run(found.with_expected_starts(*plan))
        assert [hold.expected_at for hold in holds] == [T0 + timedelta(minutes=1), None]
    assert forecast.made == 1 and not found.is_due


def test_a_plan_soon_after_keeps_the_estimates_of_the_one_before_until_its_own_are_due() -> None:
    """Of gangs that are still promised a start."""
    forecast, clock = Forecasts(), ManualClock()
    found = StartEstimates(forecast, clock)
    asyncio.run(found.with_expected_starts(*planned(GANG)))
    newer, unpromised = planned(GANG), planned(GANG, promised=())
    assert [hold.expected_at for hold in asyncio.run(found.with_expected_starts(*newer))] == [
        T0 + timedelta(minutes=1)
    ] and found.is_due
    assert [hold.expected_at for hold in asyncio.run(found.with_expected_starts(*unpromised))] == [None]
    clock.advance(start_estimates.MAX_FORECAST_PAUSE)
    assert [hold.expected_at for hold in asyncio.run(found.with_expected_starts(*newer))] == [
        T0 + timedelta(minutes=2)
    ] and not found.is_due


def test_reasons_are_written_although_the_forecast_fails() -> None:
    def fails(snapshot: Snapshot, plan: Plan, /) -> Mapping[GangId, datetime]:
        raise ValueError("broken")

    assert (
        asyncio.run(StartEstimates(fails, ManualClock()).with_expected_starts(*planned(GANG)))
        == planned(GANG)[1].hold
    )


def test_a_run_is_told_its_start_at_once_and_that_of_the_newest_plan_before_long(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        forecast = harness.forecast = Forecasts()
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

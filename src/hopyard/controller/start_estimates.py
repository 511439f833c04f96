"""Expected starts of waiting runs, recorded beside their hold reasons."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from hopyard.controller.plan_records import HoldRecords
from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.ids import GangId
from hopyard.domain.plan_record import HoldRecord
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.policy import StartForecast

FORECAST_PAUSE_FACTOR = (
    10  # pause per duration of the last forecast: forecasts take at most a tenth of the time
)
MAX_FORECAST_PAUSE = timedelta(minutes=1)
# a forecast that took this long runs in a thread the next time, so that requests need not wait for it
FORECAST_THREAD_THRESHOLD_S = 0.03

log = logging.getLogger("hopyard.controller")


class StartEstimates:
    """Computes the forecast of a plan once, and keeps it until another plan is recorded. While forecasts take
    long, the previous one is reused, so that hold reasons are not delayed.

    forecast: None for no estimates. is_due: whether the latest estimates are of an earlier plan.
    """

    def __init__(self, forecast: StartForecast | None, clock: Clock) -> None:
        self._forecast, self._clock = forecast, clock
        self._plan: Plan | None = None
        self._expected_starts: Mapping[GangId, datetime] = {}
        self._forecast_s = 0.0
        self._next_forecast_at: datetime | None = None
        self.is_due = False

    async def with_expected_starts(self, snapshot: Snapshot, plan: Plan) -> Sequence[HoldRecord]:
        """Returns the records of the plan's holds, with the expected starts that are known. plan: made from
        this snapshot."""
        if self._forecast is None:
            return HoldRecords(plan.hold, {})
        if plan is not self._plan:
            self.is_due = (
                self._next_forecast_at is not None
                and self._clock.now() < self._next_forecast_at <= self._clock.now() + MAX_FORECAST_PAUSE
            )
            if not self.is_due:
                await self._forecast_starts(self._forecast, snapshot, plan)
        promised = {promise.gang for promise in plan.promises}
        starts = {gang: at for gang, at in self._expected_starts.items() if gang in promised}
        return HoldRecords(plan.hold, starts)

    async def _forecast_starts(self, forecast: StartForecast, snapshot: Snapshot, plan: Plan) -> None:
        began = time.perf_counter()
        try:
            is_fast = self._forecast_s < FORECAST_THREAD_THRESHOLD_S
            self._expected_starts = (
                forecast(snapshot, plan) if is_fast else await asyncio.to_thread(forecast, snapshot, plan)
            )
        except Exception:
            log.exception("no start estimates: the forecast failed")
            self._expected_starts = {}
        self._plan, self._forecast_s = plan, time.perf_counter() - began
        self._next_forecast_at = self._clock.now() + min(
            timedelta(seconds=self._forecast_s) * FORECAST_PAUSE_FACTOR, MAX_FORECAST_PAUSE
        )

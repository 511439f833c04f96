"""Expected starts of runs that wait, as they are written down beside the reasons why they wait."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from hopyard.domain.cluster import Hold, Plan, Snapshot
from hopyard.domain.ids import GangId
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.policy import StartForecast

PAUSE = 10  # times as long as it took: a forecast is worth a tenth of the time
LONGEST_PAUSE = timedelta(minutes=1)
# a forecast that took so long is made in a thread the next time: requests need not wait for it
THREAD_FROM_S = 0.03

log = logging.getLogger("hopyard.controller")


class Estimates:
    """Makes the forecast of a plan once, and keeps it until another plan is written down. Where a forecast
    takes long, the one before stands for a while: the reasons why runs wait do not wait for it.

    forecast: None for no estimates. due: whether the estimates that were put in last are of an earlier plan.
    """

    def __init__(self, forecast: StartForecast | None, clock: Clock) -> None:
        self._forecast, self._clock = forecast, clock
        self._plan: Plan | None = None
        self._starts: Mapping[GangId, datetime] = {}
        self._took_s = 0.0
        self._next_at: datetime | None = None
        self.due = False

    async def put_into(self, snapshot: Snapshot, plan: Plan) -> Sequence[Hold]:
        """The plan's holds, with the expected starts that are known. plan: of this snapshot."""
        if self._forecast is None:
            return plan.hold
        if plan is not self._plan:
            self.due = (
                self._next_at is not None
                and self._clock.now() < self._next_at <= self._clock.now() + LONGEST_PAUSE
            )
            if not self.due:
                await self._make(self._forecast, snapshot, plan)
        promised = {promise.gang for promise in plan.promises}
        starts = {gang: at for gang, at in self._starts.items() if gang in promised}
        return (
            [
                replace(hold, expected_at=starts[hold.gang]) if hold.gang in starts else hold
                for hold in plan.hold
            ]
            if starts
            else plan.hold
        )

    async def _make(self, forecast: StartForecast, snapshot: Snapshot, plan: Plan) -> None:
        began = time.perf_counter()
        try:
            quick = self._took_s < THREAD_FROM_S
            self._starts = (
                forecast(snapshot, plan) if quick else await asyncio.to_thread(forecast, snapshot, plan)
            )
        except Exception:
            log.exception("no expected starts are known: the forecast failed")
            self._starts = {}
        self._plan, self._took_s = plan, time.perf_counter() - began
        self._next_at = self._clock.now() + min(timedelta(seconds=self._took_s) * PAUSE, LONGEST_PAUSE)

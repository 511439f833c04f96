"""A clock that moves only when it is set."""

from __future__ import annotations

import asyncio
import heapq
from datetime import UTC, datetime, timedelta
from itertools import count

START_TIME = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """Implements `hopyard.interfaces.clock.Clock`. Only `move_to` and `advance` wake the sleepers."""

    def __init__(self, start: datetime = START_TIME) -> None:
        self._now = start
        self._sleepers: list[tuple[datetime, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> datetime:
        return self._now

    async def sleep_until(self, when: datetime, /) -> None:
        if when <= self._now:
            await asyncio.sleep(0)
            return
        sleeper = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (when, next(self._order), sleeper))
        await sleeper

    def next_at(self) -> datetime | None:
        """Returns when the next sleeper wakes; None if nothing sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def move_to(self, when: datetime) -> None:
        """Sets the time (never back) and wakes the sleepers that are due."""
        self._now = max(self._now, when)
        while (wake_at := self.next_at()) is not None and wake_at <= self._now:
            _, _, sleeper = heapq.heappop(self._sleepers)
            sleeper.set_result(None)

    def advance(self, span: timedelta) -> None:
        self.move_to(self._now + span)

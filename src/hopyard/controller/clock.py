"""The machine's own clock."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

CLOCK_CHECK_INTERVAL_S = 60.0


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep_until(self, when: datetime, /) -> None:
        """Until the clock says so, or as long as that was to take when it was asked: whoever sets the clock
        back holds nobody up. A clock that was set forward, as after a machine slept, is noticed within a
        minute."""
        left = (when - self.now()).total_seconds()
        deadline = time.monotonic() + left
        while left > 0:
            await asyncio.sleep(min(left, CLOCK_CHECK_INTERVAL_S))
            left = min((when - self.now()).total_seconds(), deadline - time.monotonic())

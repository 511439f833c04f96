"""The clock of the machine."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

CLOCK_CHECK_INTERVAL_S = 60.0


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep_until(self, when: datetime, /) -> None:
        """Sleeps until the time `when`, but never longer than the time that remained at the call. A clock
        that was set back therefore delays no caller. A clock that was set forward, as after suspend, is
        noticed within a minute."""
        remaining_s = (when - self.now()).total_seconds()
        deadline = time.monotonic() + remaining_s
        while remaining_s > 0:
            await asyncio.sleep(min(remaining_s, CLOCK_CHECK_INTERVAL_S))
            remaining_s = min((when - self.now()).total_seconds(), deadline - time.monotonic())

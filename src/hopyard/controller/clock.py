"""The machine's own clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep_until(self, when: datetime, /) -> None:
        await asyncio.sleep(max(0.0, (when - self.now()).total_seconds()))

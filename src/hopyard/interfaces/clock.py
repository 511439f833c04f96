from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Only the controller and the composition root hold a clock. Times are UTC and aware."""

    def now(self) -> datetime: ...
    async def sleep_until(self, when: datetime, /) -> None: ...

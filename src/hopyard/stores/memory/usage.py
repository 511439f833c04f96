"""What runs held of the machines, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from hopyard.domain.usage import Usage, UsageKey, sum_usage, usage_between
from hopyard.stores.memory.state import AttemptUsage, MemoryState, run_of_attempt


class MemoryUsageStore:
    """Implements `hopyard.interfaces.usage_store.UsageStore`."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    async def usage(self, since: datetime, until: datetime, /, *, now: datetime) -> Sequence[Usage]:
        live = [
            self._state.runs[run_of_attempt(attempt)].attempts[-1] for attempt in self._state.live_attempts
        ]
        held = [
            *self._state.finished_usage,
            *(AttemptUsage(row.placed_at, now, row.amounts, *self._state.usage_owner(row)) for row in live),
        ]
        found = (
            usage_between(
                one.placed_at,
                one.ended_at,
                one.amounts,
                since=since,
                until=until,
                user=one.user,
                queue=one.queue,
                project=one.project,
            )
            for one in held
        )
        return sum_usage((one for one in found if one is not None), tuple(UsageKey))

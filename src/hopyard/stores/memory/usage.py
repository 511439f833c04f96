"""The usage of resources by runs, in memory."""

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
        live_attempts = [
            self._state.runs[run_of_attempt(attempt)].attempts[-1] for attempt in self._state.live_attempts
        ]
        attempts = [
            *self._state.finished_usage,
            *(
                AttemptUsage(row.placed_at, now, row.amounts, *self._state.usage_owner(row))
                for row in live_attempts
            ),
        ]
        usages = (
            usage_between(
                attempt.placed_at,
                attempt.ended_at,
                attempt.amounts,
                since=since,
                until=until,
                user=attempt.user,
                queue=attempt.queue,
                project=attempt.project,
            )
            for attempt in attempts
        )
        return sum_usage((usage for usage in usages if usage is not None), tuple(UsageKey))

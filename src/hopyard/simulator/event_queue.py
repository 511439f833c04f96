"""The events of the engine and the workload, in the order of time and then of creation."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable
from datetime import datetime
from itertools import count

EventAction = Callable[[], Awaitable[None]]


class EventQueue:
    def __init__(self) -> None:
        self._heap: list[tuple[datetime, int, EventAction]] = []
        self._order = count()

    def schedule(self, when: datetime, action: EventAction) -> None:
        heapq.heappush(self._heap, (when, next(self._order), action))

    def next_at(self) -> datetime | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: datetime) -> EventAction | None:
        """Removes and returns the next action that is due; None if there is none."""
        return heapq.heappop(self._heap)[2] if self._heap and self._heap[0][0] <= now else None

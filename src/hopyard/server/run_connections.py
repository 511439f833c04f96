"""The open connections to the ports and consoles of runs, and when each run last had one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from hopyard.domain.ids import RunId


class RunConnections:
    """Counts the connections of one server. A run that had none since the server began may have had one
    before: that moment counts as its last."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now, self._began_at = now, now()
        self._open: Counter[RunId] = Counter()
        self._closed_at: dict[RunId, datetime] = {}

    @contextmanager
    def connected(self, run: RunId) -> Iterator[None]:
        """Counts a connection while it is open."""
        self._open[run] += 1
        try:
            yield
        finally:
            self._open[run] -= 1
            if not self._open[run]:
                del self._open[run]
                self._closed_at[run] = self._now()

    def last_at(self, run: RunId) -> datetime:
        """Returns when the run last had a connection: now, if it has one."""
        return self._now() if self._open[run] else self._closed_at.get(run, self._began_at)

    def forget(self, run: RunId) -> None:
        """Forgets a run that has ended."""
        self._closed_at.pop(run, None)

"""Who waits for news of a run. A follower holds a flag, never the news itself, so a slow one costs no memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hopyard.domain.ids import RunId


class Watch:
    """One follower's flags: what may have changed since it looked last. bell: shared by who watches several runs."""

    def __init__(self, bell: asyncio.Event | None = None) -> None:
        self.state, self.output, self.progress, self.closed = True, True, True, False
        self._bell = bell or asyncio.Event()

    def ring(self) -> None:
        self._bell.set()

    async def wait(self, timeout_s: float | None) -> bool:
        """Wait for the next news; False when none came within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._bell.wait()
        except TimeoutError:
            return False
        self._bell.clear()
        return True


class Hub:
    """Rings the followers of a run. All calls belong to one event loop."""

    def __init__(self) -> None:
        self._watches: dict[RunId, set[Watch]] = {}
        self.closed = False

    @contextmanager
    def watch(self, run: RunId, bell: asyncio.Event | None = None) -> Iterator[Watch]:
        """bell: rung instead of one of its own."""
        watch = Watch(bell)
        watch.closed = self.closed
        self._watches.setdefault(run, set()).add(watch)
        try:
            yield watch
        finally:
            found = self._watches[run]
            found.discard(watch)
            if not found:
                del self._watches[run]

    def state_changed(self, run: RunId) -> None:
        """The run's phase, hold or result is another now."""
        for watch in self._watches.get(run, ()):
            watch.state = True
            watch.ring()

    def output_grew(self, run: RunId) -> None:
        """More bytes of one of the run's streams are here."""
        for watch in self._watches.get(run, ()):
            watch.output = True
            watch.ring()

    def progressed(self, run: RunId) -> None:
        """The run's progress, latest metrics or use of the machine is another now."""
        for watch in self._watches.get(run, ()):
            watch.progress = True
            watch.ring()

    def close(self) -> None:
        """The server ends: every follower is told to leave."""
        self.closed = True
        for watches in self._watches.values():
            for watch in watches:
                watch.closed = True
                watch.ring()

    def followers(self, run: RunId) -> int:
        return len(self._watches.get(run, ()))

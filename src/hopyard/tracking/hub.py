"""Who waits for news of a run. A follower holds flags, and of each stream that grew its newest piece where
that is short: one that keeps up need not read what was just taken in, and a slow one costs next to no
memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hopyard.domain.ids import RunId
from hopyard.interfaces.streams import StreamKey

PIECE_BYTES = 4096  # a longer piece of output is read from its stream again


class Watch:
    """One follower's flags: what may have changed since it looked last.
    bell: shared by who watches several runs.

    grown: how long each stream of output is that grew, and its last bytes; none where they are many.
    """

    def __init__(self, bell: asyncio.Event | None = None) -> None:
        self.state, self.progress, self.closed = True, True, False
        self.grown: dict[StreamKey, tuple[int, bytes]] = {}
        self._bell = bell or asyncio.Event()

    def take_grown(self) -> dict[StreamKey, tuple[int, bytes]]:
        """What grew since this was asked last."""
        grown, self.grown = self.grown, {}
        return grown

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

    def output_grew(self, run: RunId, key: StreamKey, length: int, piece: bytes) -> None:
        """One of the run's streams has this length now; `piece` is what came last."""
        for watch in self._watches.get(run, ()):
            watch.grown[key] = (length, piece if len(piece) <= PIECE_BYTES else b"")
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

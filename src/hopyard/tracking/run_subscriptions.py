"""Who waits for news of a run. A follower holds flags, and of each stream that grew its newest piece where
that is short: one that keeps up need not read what was just taken in, and a slow one costs next to no
memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hopyard.domain.ids import RunId
from hopyard.interfaces.streams import StreamKey

MAX_TAIL_BYTES = 4096  # a longer piece of output is read from its stream again


class Subscription:
    """One follower's flags: what may have changed since it looked last.
    event: shared by who watches several runs.

    stream_lengths: how long each stream of output is that grew, and its last bytes; none where they are many.
    """

    def __init__(self, event: asyncio.Event | None = None) -> None:
        self.state_changed, self.progress_changed, self.closed = True, True, False
        self.stream_lengths: dict[StreamKey, tuple[int, bytes]] = {}
        self._event = event or asyncio.Event()

    def take_stream_lengths(self) -> dict[StreamKey, tuple[int, bytes]]:
        """What grew since this was asked last."""
        grown, self.stream_lengths = self.stream_lengths, {}
        return grown

    def notify(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float | None) -> bool:
        """Wait for the next news; False when none came within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class RunSubscriptions:
    """Rings the followers of a run. All calls belong to one event loop."""

    def __init__(self) -> None:
        self._subscriptions: dict[RunId, set[Subscription]] = {}
        self.closed = False

    @contextmanager
    def subscribe(self, run: RunId, event: asyncio.Event | None = None) -> Iterator[Subscription]:
        """event: rung instead of one of its own."""
        watch = Subscription(event)
        watch.closed = self.closed
        self._subscriptions.setdefault(run, set()).add(watch)
        try:
            yield watch
        finally:
            found = self._subscriptions[run]
            found.discard(watch)
            if not found:
                del self._subscriptions[run]

    def notify_state(self, run: RunId) -> None:
        """The run's phase, hold or result is another now."""
        for watch in self._subscriptions.get(run, ()):
            watch.state_changed = True
            watch.notify()

    def notify_output(self, run: RunId, key: StreamKey, length: int, tail: bytes) -> None:
        """One of the run's streams has this length now; `tail` is what came last."""
        for watch in self._subscriptions.get(run, ()):
            watch.stream_lengths[key] = (length, tail if len(tail) <= MAX_TAIL_BYTES else b"")
            watch.notify()

    def notify_progress(self, run: RunId) -> None:
        """The run's progress, latest metrics or use of the machine is another now."""
        for watch in self._subscriptions.get(run, ()):
            watch.progress_changed = True
            watch.notify()

    def close(self) -> None:
        """The server ends: every follower is told to leave."""
        self.closed = True
        for watches in self._subscriptions.values():
            for watch in watches:
                watch.closed = True
                watch.notify()

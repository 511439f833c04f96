"""Subscriptions of followers to changes of runs.

A subscription has flags, and for each stream that grew its newest bytes if they are few. A follower that
keeps up need not read the stream again, and a slow follower uses almost no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hopyard.domain.ids import RunId
from hopyard.interfaces.streams import StreamKey

MAX_TAIL_BYTES = 4096  # more output is read from its stream again


class Subscription:
    """The flags of one follower: what may have changed since its latest check.
    event: shared by the subscriptions of a caller that follows several runs.

    stream_lengths: the length of each output stream that grew, and its last bytes; b"" if they are many.
    """

    def __init__(self, event: asyncio.Event | None = None) -> None:
        self.state_changed, self.progress_changed, self.closed = True, True, False
        self.stream_lengths: dict[StreamKey, tuple[int, bytes]] = {}
        self._event = event or asyncio.Event()

    def take_stream_lengths(self) -> dict[StreamKey, tuple[int, bytes]]:
        """Returns and clears the lengths of streams that grew."""
        lengths, self.stream_lengths = self.stream_lengths, {}
        return lengths

    def notify(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float | None) -> bool:
        """Waits for the next notification. Returns False when none came within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class RunSubscriptions:
    """Notifies the followers of a run. All calls belong to one event loop."""

    def __init__(self) -> None:
        self._subscriptions: dict[RunId, set[Subscription]] = {}
        self.closed = False

    @property
    def has_any(self) -> bool:
        """Whether any run is followed."""
        return bool(self._subscriptions)

    @contextmanager
    def subscribe(self, run: RunId, event: asyncio.Event | None = None) -> Iterator[Subscription]:
        """event: notified instead of an event of its own."""
        subscription = Subscription(event)
        subscription.closed = self.closed
        self._subscriptions.setdefault(run, set()).add(subscription)
        try:
            yield subscription
        finally:
            subscriptions = self._subscriptions[run]
            subscriptions.discard(subscription)
            if not subscriptions:
                del self._subscriptions[run]

    def notify_state(self, run: RunId) -> None:
        """Notifies of a change of the run's phase, hold or result."""
        for subscription in self._subscriptions.get(run, ()):
            subscription.state_changed = True
            subscription.notify()

    def notify_all_states(self) -> None:
        """Notifies that any run may have changed."""
        for run in self._subscriptions:
            self.notify_state(run)

    def notify_output(self, run: RunId, key: StreamKey, length: int, tail: bytes) -> None:
        """Notifies that a stream of the run has this length now. tail: the bytes appended last."""
        for subscription in self._subscriptions.get(run, ()):
            subscription.stream_lengths[key] = (length, tail if len(tail) <= MAX_TAIL_BYTES else b"")
            subscription.notify()

    def notify_progress(self, run: RunId) -> None:
        """Notifies of a change of the run's progress, latest metrics or resource usage."""
        for subscription in self._subscriptions.get(run, ()):
            subscription.progress_changed = True
            subscription.notify()

    def close(self) -> None:
        """Ends every subscription, because the server ends."""
        self.closed = True
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.closed = True
                subscription.notify()

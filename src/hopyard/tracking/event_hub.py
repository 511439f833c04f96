"""Sends changes to any number of clients.

One task reads the log of changes, loads the state of what changed once, and keeps the newest events. Every
client has only a position. Clients with equal filters at the same position share the bytes of their next
events. A client that is further behind than the kept events reads the log, a page at a time. So a slow client
uses no memory, and misses nothing. Clients are woken in small groups, and pages of the log are read one after
another, each followed by a break. So many clients delay no write.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from hopyard.domain.change import Change, ChangeKind, Position, latest_of_topics
from hopyard.domain.ids import RunId
from hopyard.errors import HopyardError
from hopyard.interfaces.change_feed import ChangeFeed
from hopyard.tracking.event_batch import EventBatch, Sent
from hopyard.tracking.event_filter import Event, EventFilter
from hopyard.tracking.run_subscriptions import RunSubscriptions

STUDY_KIND = "study"
HEARTBEAT_S = 15.0
KEPT_CHANGES = 200_000  # rows of the log
_PRUNE_INTERVAL_S = 600.0
_POLL_INTERVAL_S = 1.0  # for writes of other servers, and between frequent changes
_MIN_INTERVAL_S = 0.05  # between two reads of the log
_INTERVAL_PER_CLIENT_S = 0.0005  # so that many clients wake less often
_PAGE = 500
_MAX_EVENTS_AT_ONCE = 100  # of a client; also the page of a client that is behind
_MAX_KEPT_EVENTS = 1000  # in memory
_MAX_KEPT_BATCHES, _MAX_KEPT_PAGES = 1024, 16
_WOKEN_AT_ONCE = 32  # clients
log = logging.getLogger("hopyard.server")


Load = Callable[[Sequence[Change]], Awaitable[Sequence[Event]]]
_Found = tuple[Sequence[Event], tuple[int, int] | None]  # events, and the row up to which they are complete


class EventClient:
    """The connection of one client. close: ends its events."""

    def __init__(self) -> None:
        self._has_ended = False
        self._woken = asyncio.Event()

    def close(self) -> None:
        self._has_ended = True
        self._woken.set()

    def has_ended(self) -> bool:
        return self._has_ended

    def wake(self) -> None:
        self._woken.set()

    def clear(self) -> None:
        self._woken.clear()

    async def wait(self, timeout_s: float) -> bool:
        """Returns False if nothing woke the client within this time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True


@dataclass(slots=True)
class _Lane:
    """The newest events of one kind. since: they are complete after this row. until_seq, until_tag: up to
    this row."""

    since: int = 0
    until_seq: int = 0
    until_tag: int = 0
    events: deque[Event] = field(default_factory=deque)

    def restart(self, position: Position) -> None:
        self.events.clear()
        self.since = self.until_seq = position.seq
        self.until_tag = position.tag

    def extend(self, events: Sequence[Event], until_seq: int, until_tag: int) -> None:
        self.events.extend(events)
        self.until_seq, self.until_tag = until_seq, until_tag
        while len(self.events) > _MAX_KEPT_EVENTS:
            self.since = self.events.popleft().change.seq

    def after(self, seq: int) -> list[Event]:
        """Returns the kept events after this row."""
        newer: list[Event] = []
        for event in reversed(self.events):
            if event.change.seq <= seq:
                break
            newer.append(event)
        return newer[::-1]


class EventHub:
    """All calls belong to one event loop. load: the events of changes, in their order, without those of
    subjects that no longer exist. followers: of single runs, notified of changes that other servers of the
    database write; None if there are no other servers."""

    def __init__(self, feed: ChangeFeed, load: Load, *, followers: RunSubscriptions | None = None) -> None:
        self._feed, self._load, self._followers = feed, load, followers
        self._clients: set[EventClient] = set()
        self._lanes = {False: _Lane(), True: _Lane()}
        self._unsent_frequent: dict[object, Change] = {}
        self._head: Position | None = None  # None: the log is not being read
        self._wake: asyncio.Event | None = None
        # shared by clients, until there are new events
        self._batches: dict[tuple[Position, bool, EventFilter], tuple[EventBatch | None, Position]] = {}
        self._pages: dict[tuple[Position, bool], _Found] = {}  # of clients that are behind
        self._reading_page = asyncio.Lock()
        self._is_closed = False

    def close(self) -> None:
        """Ends the events of all clients, because the server ends."""
        self._is_closed = True
        for client in self._clients:
            client.close()

    async def run(self) -> None:
        """Reads the log while there are clients, and removes its old rows, until it is cancelled."""
        loop = asyncio.get_running_loop()
        wake = self._wake = asyncio.Event()

        def on_commit() -> None:
            if self._clients and not loop.is_closed():
                loop.call_soon_threadsafe(wake.set)

        self._feed.on_commit(on_commit)
        next_prune = next_frequent = loop.time()
        while True:
            try:
                if loop.time() >= next_prune:
                    next_prune = loop.time() + _PRUNE_INTERVAL_S
                    await self._feed.prune(KEPT_CHANGES)
                if self._is_needed():
                    await self._read_log()
                    if loop.time() >= next_frequent:
                        next_frequent = loop.time() + _POLL_INTERVAL_S
                        await self._publish_frequent()
                else:
                    self._head = None
                    self._batches.clear()
                    self._pages.clear()
            except HopyardError as error:  # a database that is down
                log.info("the log of changes was not read: %s", error.message)
                await asyncio.sleep(_POLL_INTERVAL_S)
            await asyncio.sleep(max(_MIN_INTERVAL_S, _INTERVAL_PER_CLIENT_S * len(self._clients)))
            # a new follower does not wake this task
            is_polling = self._clients or self._followers is not None
            timeout_s = (next_frequent if is_polling else next_prune) - loop.time()
            timeout_s = min(timeout_s, _POLL_INTERVAL_S) if is_polling else timeout_s
            try:
                async with asyncio.timeout(max(0.0, timeout_s)):
                    await wake.wait()
            except TimeoutError:
                pass
            wake.clear()

    async def follow(
        self, client: EventClient, after: Position | None, accepts: EventFilter
    ) -> AsyncIterator[EventBatch]:
        """Yields what changes, from the position `after`, or from now on, until the client is closed; up to a
        hundred events together.

        The first item is a heartbeat with the position, or a reset if changes after `after` are unknown.
        """
        with self._register(client):
            position, is_complete = await self._start(after)
            yield EventBatch([Sent(position, is_reset=not is_complete)])
            while not client.has_ended():
                client.clear()  # before the read: a change after it wakes the client again
                before = position
                for frequent in (False, True):
                    batch, end = await self._next_batch(position, frequent, accepts)
                    if end is None:
                        position = await self._feed.newest()
                        yield EventBatch([Sent(position, is_reset=True)])
                        break
                    if batch is not None:
                        yield batch
                    if client.has_ended():
                        return
                    position = end
                if position == before and not client.has_ended() and not await client.wait(HEARTBEAT_S):
                    yield EventBatch([Sent(position)])

    @contextmanager
    def _register(self, client: EventClient) -> Iterator[None]:
        self._clients.add(client)
        if self._is_closed:
            client.close()
        if self._wake is not None:
            self._wake.set()
        try:
            yield
        finally:
            self._clients.discard(client)

    async def _start(self, after: Position | None) -> tuple[Position, bool]:
        if after is not None and await self._feed.is_complete_after(after):
            return after, True
        return await self._feed.newest(), after is None

    async def _next_batch(
        self, position: Position, frequent: bool, accepts: EventFilter
    ) -> tuple[EventBatch | None, Position | None]:
        """Returns the next accepted events, and the position up to which they are complete; None if some were
        removed."""
        key = position, frequent, accepts
        kept = self._batches.get(key)
        if kept is not None:
            return kept
        events, end = await self._next(position, frequent)
        if end is None:
            return None, None
        accepted: list[Sent] = []
        current = position
        for event in events:
            change = event.change
            current = current.advance(change.seq, change.tag, frequent=frequent)
            if accepts.accepts(event):
                accepted.append(Sent(current, event))
        found = EventBatch(accepted) if accepted else None, current.advance(*end, frequent=frequent)
        if found[1] != position:  # otherwise a change may have come since the read
            if len(self._batches) >= _MAX_KEPT_BATCHES:
                self._batches.clear()
            self._batches[key] = found
        return found

    async def _next(self, position: Position, frequent: bool) -> _Found:
        """Returns the next events after the position, and the row up to which they are complete; None if
        some were removed."""
        seq = position.frequent_seq if frequent else position.seq
        lane = self._lanes[frequent]
        if self._head is not None and seq >= lane.since:
            events = lane.after(seq)
            if len(events) > _MAX_EVENTS_AT_ONCE:
                events = events[:_MAX_EVENTS_AT_ONCE]
                return events, (events[-1].change.seq, events[-1].change.tag)
            if seq >= lane.until_seq:
                return (), (seq, position.tag)
            return events, (lane.until_seq, lane.until_tag)
        async with self._reading_page:
            return await self._read_page(position, frequent)

    async def _read_page(self, position: Position, frequent: bool) -> _Found:
        key, seq = (position, frequent), position.frequent_seq if frequent else position.seq
        if (kept := self._pages.get(key)) is not None:
            return kept
        clock = asyncio.get_running_loop().time
        started = clock()
        page = await self._feed.read(seq, limit=_MAX_EVENTS_AT_ONCE, frequent=frequent)
        if page.oldest_seq > seq:
            return (), None
        events = await self._load(latest_of_topics(page.changes))
        found: _Found = events, (page.until_seq, page.until_tag)
        if page.until_seq > seq:  # at the end of the log, the next read may find more
            while len(self._pages) >= _MAX_KEPT_PAGES:
                del self._pages[next(iter(self._pages))]
            self._pages[key] = found
        await asyncio.sleep(clock() - started)  # other requests get as much time
        return found

    async def _read_log(self) -> None:
        """Reads all new rows, and publishes the events of those that are not frequent."""
        if self._head is None and self._followers is not None:
            self._followers.notify_all_states()
        if self._head is None:
            self._unsent_frequent.clear()
            self._batches.clear()
            newest = await self._feed.newest()
            for lane in self._lanes.values():
                lane.restart(newest)
            self._head = newest
            await self._wake_clients()  # they may have read up to an earlier row
        while True:
            page = await self._feed.read(self._head.seq, limit=_PAGE)
            if page.oldest_seq > self._head.seq:
                self._head = None
                return await self._read_log()
            for change in page.changes:
                if change.is_frequent:
                    self._unsent_frequent.pop(change.topic, None)
                    self._unsent_frequent[change.topic] = change
            plain = [change for change in page.changes if not change.is_frequent]
            events = await self._load(latest_of_topics(plain)) if plain else ()
            self._lanes[False].extend(events, page.until_seq, page.until_tag)
            self._head = Position(page.until_seq, page.until_seq, page.until_tag)
            for run in {change.subject for change in plain if change.kind is ChangeKind.RUN}:
                if self._followers is not None:
                    self._followers.notify_state(RunId(run))
            if page.changes:
                self._batches.clear()
                await self._wake_clients()
            if len(page.changes) < _PAGE:
                return None

    async def _publish_frequent(self) -> None:
        if self._head is None:
            return
        lane, is_any = self._lanes[True], bool(self._unsent_frequent)
        while self._unsent_frequent:
            page = list(islice(self._unsent_frequent.values(), _PAGE))
            lane.extend(await self._load(page), page[-1].seq, page[-1].tag)
            for change in page:
                del self._unsent_frequent[change.topic]
        lane.extend((), self._head.seq, self._head.tag)
        if is_any:
            self._batches.clear()
            await self._wake_clients()

    def _is_needed(self) -> bool:
        return bool(self._clients) or (self._followers is not None and self._followers.has_any)

    async def _wake_clients(self) -> None:
        """Wakes all clients, a group after another. Between two groups, other requests get as much time."""
        clock, clients = asyncio.get_running_loop().time, list(self._clients)
        for first in range(0, len(clients), _WOKEN_AT_ONCE):
            started = clock()
            for client in clients[first : first + _WOKEN_AT_ONCE]:
                client.wake()
            await asyncio.sleep(0)  # the clients run
            await asyncio.sleep(clock() - started)

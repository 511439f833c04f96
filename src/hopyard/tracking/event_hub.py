"""Sends changes to any number of clients.

One task reads the log of changes, loads the state of what changed once, and keeps the newest events. Every
client has only a position. A client that is further behind than the kept events reads the log itself, a page
at a time. So a slow client uses no memory, delays no write, and misses nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from hopyard.domain.change import Change, ChangeKind, Position, RunChange, latest_of_topics
from hopyard.domain.ids import RunId
from hopyard.domain.run_query import RunQuery, RunValues
from hopyard.errors import HopyardError
from hopyard.interfaces.change_feed import ChangeFeed
from hopyard.tracking.run_subscriptions import RunSubscriptions

STUDY_KIND = "study"
HEARTBEAT_S = 15.0
KEPT_CHANGES = 200_000  # rows of the log
_PRUNE_INTERVAL_S = 600.0
_POLL_INTERVAL_S = 1.0  # for writes of other servers, and between frequent changes
_MIN_INTERVAL_S = 0.05  # between two reads of the log
_INTERVAL_PER_CLIENT_S = 0.0005  # so that many clients wake less often
_PAGE, _MAX_EVENTS_AT_ONCE = 500, 100
_MAX_KEPT_EVENTS = 1000  # in memory
_MAX_CATCHING_UP = 4  # clients that read the log at the same time
log = logging.getLogger("hopyard.server")


@dataclass(frozen=True, slots=True)
class Event:
    """A change with the state of its subject. data: JSON for clients, the same for all. values: what a query
    may look at; None for what is no run, or is deleted."""

    change: Change
    data: bytes
    kind: str
    user: str = ""
    project: str = ""
    values: RunValues | None = None


Load = Callable[[Sequence[Change]], Awaitable[Sequence[Event]]]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """All conditions that are set must hold. kinds, changes: any of these. runs, user, project, query: only
    of runs; the deletion of a run fulfils every query."""

    kinds: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()
    user: str | None = None
    project: str | None = None
    query: RunQuery | None = None

    def accepts(self, event: Event) -> bool:
        change = event.change
        if (self.kinds and event.kind not in self.kinds) or (
            self.changes and change.change not in self.changes
        ):
            return False
        if change.kind is not ChangeKind.RUN:
            # with conditions on runs, other kinds are sent only on request
            return bool(self.kinds) or not (self.runs or self.user or self.project or self.query)
        if (self.runs and change.subject not in self.runs) or (
            (self.user and event.user != self.user) or (self.project and event.project != self.project)
        ):
            return False
        if self.query is None or change.change == RunChange.DELETED:
            return True
        return event.values is not None and self.query.accepts(event.values)


@dataclass(frozen=True, slots=True)
class Sent:
    """What a client gets next. event: None for a heartbeat. is_reset: changes may be missing, so the client
    must list everything again."""

    position: Position
    event: Event | None = None
    is_reset: bool = False


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
        self._catching_up = asyncio.Semaphore(_MAX_CATCHING_UP)
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
    ) -> AsyncIterator[Sequence[Sent]]:
        """Yields what changes, from the position `after`, or from now on, until the client is closed; up to a
        hundred events together.

        The first item is a heartbeat with the position, or a reset if changes after `after` are unknown.
        """
        with self._register(client):
            position, is_complete = await self._start(after)
            yield [Sent(position, is_reset=not is_complete)]
            while not client.has_ended():
                client.clear()  # before the read: a change after it wakes the client again
                before = position
                for frequent in (False, True):
                    events, end = await self._next(position, frequent)
                    if end is None:
                        position = await self._feed.newest()
                        yield [Sent(position, is_reset=True)]
                        break
                    accepted: list[Sent] = []
                    for event in events:
                        change = event.change
                        position = position.advance(change.seq, change.tag, frequent=frequent)
                        if accepts.accepts(event):
                            accepted.append(Sent(position, event))
                    if accepted:
                        yield accepted
                    if client.has_ended():
                        return
                    position = position.advance(*end, frequent=frequent)
                if position == before and not client.has_ended() and not await client.wait(HEARTBEAT_S):
                    yield [Sent(position)]

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

    async def _next(
        self, position: Position, frequent: bool
    ) -> tuple[Sequence[Event], tuple[int, int] | None]:
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
        async with self._catching_up:
            page = await self._feed.read(seq, limit=_PAGE, frequent=frequent)
            if page.oldest_seq > seq:
                return (), None
            return await self._load(latest_of_topics(page.changes)), (page.until_seq, page.until_tag)

    async def _read_log(self) -> None:
        """Reads all new rows, and publishes the events of those that are not frequent."""
        if self._head is None and self._followers is not None:
            self._followers.notify_all_states()
        if self._head is None:
            self._unsent_frequent.clear()
            newest = await self._feed.newest()
            for lane in self._lanes.values():
                lane.restart(newest)
            self._head = newest
            self._wake_clients()  # they may have read up to an earlier row
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
                self._wake_clients()
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
            self._wake_clients()

    def _is_needed(self) -> bool:
        return bool(self._clients) or (self._followers is not None and self._followers.has_any)

    def _wake_clients(self) -> None:
        for client in self._clients:
            client.wake()

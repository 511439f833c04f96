"""A client that reconnects any number of times, to any server, misses no change and gets none twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopyard.domain.change import Change, ChangeKind, Position, latest_of_topics, parse_cursor
from hopyard.domain.run_query import parse_query
from hopyard.errors import SpecError
from hopyard.interfaces.change_feed import ChangePage
from hopyard.tracking import event_hub
from hopyard.tracking.event_batch import EventBatch, Sent
from hopyard.tracking.event_filter import Event, EventFilter
from hopyard.tracking.event_hub import EventClient, EventHub

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUT_S = 60.0


class ListFeed:
    """A ChangeFeed in memory. `version` counts the changes of each subject, as its state."""

    def __init__(self) -> None:
        self.rows = [Change(1, 7, NOW, ChangeKind.SERVER, "", "created")]
        self._listeners: list[Callable[[], None]] = []

    def write(self, subject: str, *, frequent: bool) -> None:
        seq = self.rows[-1].seq + 1
        self.rows.append(Change(seq, seq * 31 % 101, NOW, ChangeKind.RUN, subject, "x", is_frequent=frequent))
        for listener in self._listeners:
            listener()

    def newest_of_topics(self) -> dict[tuple[str, bool], int]:
        return {(row.subject, row.is_frequent): row.seq for row in self.rows if row.kind is ChangeKind.RUN}

    def on_commit(self, listener: Callable[[], None], /) -> None:
        self._listeners.append(listener)

    async def newest(self) -> Position:
        return Position(self.rows[-1].seq, self.rows[-1].seq, self.rows[-1].tag)

    async def is_complete_after(self, position: Position, /) -> bool:
        tags = {row.seq: row.tag for row in self.rows}
        return tags.get(position.last) == position.tag and self.rows[0].seq <= position.first

    async def read(self, after: int, /, *, limit: int, frequent: bool | None = None) -> ChangePage:
        await asyncio.sleep(0)
        rows = [
            row for row in self.rows if row.seq > after and (frequent is None or row.is_frequent is frequent)
        ][:limit]
        last = rows[-1] if len(rows) == limit else self.rows[-1]
        return ChangePage(rows, last.seq, last.tag, self.rows[0].seq)

    async def prune(self, keep: int, /) -> None:
        del self.rows[:-keep]


async def load(changes: Sequence[Change]) -> Sequence[Event]:
    await asyncio.sleep(0)
    return [Event(change, b"{}", "run") for change in changes if change.kind is ChangeKind.RUN]


@dataclass
class Reader:
    """One client over all its connections. seen: the last row of each topic that it knows."""

    cursor: str
    seen: dict[tuple[str, bool], int] = field(default_factory=dict)
    received: list[int] = field(default_factory=list)
    resets: int = 0

    def take(self, item: Sent, feed: ListFeed) -> None:
        self.cursor = item.position.cursor()
        if item.is_reset:
            self.resets += 1
            self.seen = feed.newest_of_topics()  # it lists everything again
        elif item.event is not None:
            change = item.event.change
            assert change.seq not in self.received, "an event came twice"
            self.received.append(change.seq)
            key = change.subject, change.is_frequent
            assert change.seq > self.seen.get(key, 0) or self.resets
            self.seen[key] = max(change.seq, self.seen.get(key, 0))


async def read_items(hub: EventHub, reader: Reader, feed: ListFeed, *, count: int | None) -> None:
    """Reads so many events, or until the client has everything; then the connection breaks."""
    client = EventClient()
    position = parse_cursor(reader.cursor) if reader.cursor else None
    items: AsyncIterator[EventBatch] = hub.follow(client, position, EventFilter())
    read = 0
    async with asyncio.timeout(TIMEOUT_S), aclosing(items):  # type: ignore[type-var]
        async for batch in items:
            for item in batch:
                if count is not None and read >= count:
                    return  # the rest of what the server sent is lost
                reader.take(item, feed)
                read += item.event is not None
            newest = (await feed.newest()).seq
            last = batch.items[-1]
            is_heartbeat = last.event is None and (count is None or not last.is_reset)
            if is_heartbeat and last.position.first == newest:
                return


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from("abc"), st.booleans()),
        st.tuples(st.just("read"), st.integers(0, 1), st.integers(0, 4)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("prune"), st.integers(1, 6), st.just(0)),
    ),
    max_size=25,
)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_hub, "_MIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(event_hub, "_POLL_INTERVAL_S", 0.002)
    monkeypatch.setattr(event_hub, "HEARTBEAT_S", 0.004)
    monkeypatch.setattr(event_hub, "_PAGE", 3)
    monkeypatch.setattr(event_hub, "_MAX_EVENTS_AT_ONCE", 2)
    monkeypatch.setattr(event_hub, "_MAX_KEPT_EVENTS", 4)


@given(steps)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_event_is_lost_or_doubled_over_reconnects(steps: list[tuple[str, object, object]]) -> None:
    async def scenario() -> None:
        feed = ListFeed()
        hub = EventHub(feed, load)
        running = asyncio.create_task(hub.run())
        readers = [Reader((await feed.newest()).cursor()) for _ in range(2)]
        pruned = False
        for name, first, second in steps:
            if name == "write":
                feed.write(str(first), frequent=bool(second))
            elif name == "read":
                assert isinstance(first, int) and isinstance(second, int)
                await read_items(hub, readers[first], feed, count=second)
            elif name == "prune":
                assert isinstance(first, int)
                await feed.prune(first)
                pruned = True
            else:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running
                hub = EventHub(feed, load)
                running = asyncio.create_task(hub.run())
        for reader in readers:
            await read_items(hub, reader, feed, count=None)
            newest = feed.newest_of_topics()
            assert {key: reader.seen.get(key) for key in newest} == newest, "a change was lost"
            assert pruned or not reader.resets
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(scenario())


class CountingFeed(ListFeed):
    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, bool | None]] = []

    async def read(self, after: int, /, *, limit: int, frequent: bool | None = None) -> ChangePage:
        self.reads.append((after, frequent))
        return await super().read(after, limit=limit, frequent=frequent)


async def next_with_events(hub: EventHub, after: Position | None, accepts: EventFilter) -> EventBatch:
    """Returns the first batch of a client that has events."""
    items: AsyncIterator[EventBatch] = hub.follow(EventClient(), after, accepts)
    async with asyncio.timeout(TIMEOUT_S), aclosing(items):  # type: ignore[type-var]
        async for batch in items:
            if batch.items[0].event is not None:
                return batch
    raise AssertionError("the events have ended")


async def all_wait(hub: EventHub, count: int) -> None:
    """Waits until the hub reads the log, and so many clients wait for the next event."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            waiting = [client for client in hub._clients if client._woken._waiters]  # type: ignore[attr-defined]
            if hub._head is not None and len(waiting) == count:
                return
            await asyncio.sleep(0.001)


def test_clients_with_equal_filters_share_their_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_hub, "HEARTBEAT_S", TIMEOUT_S)

    async def scenario() -> None:
        feed = ListFeed()
        hub = EventHub(feed, load)
        running = asyncio.create_task(hub.run())
        filters = [
            EventFilter(kinds=frozenset({"run"}), runs=frozenset({run}), query=None) for run in "aab" * 20
        ]
        reading = [asyncio.create_task(next_with_events(hub, None, accepts)) for accepts in filters]
        await all_wait(hub, len(filters))
        for run in "ab":
            feed.write(run, frequent=False)
        batches = await asyncio.gather(*reading)
        assert len({id(batch) for batch in batches}) == 2
        assert len({id(chunk) for batch in batches for chunk in batch.chunks()}) == 2
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(scenario())


def test_equal_queries_are_equal_filters() -> None:
    first, again, other = (EventFilter(query=parse_query(f"label = {label}")) for label in "aab")
    assert (first == again, hash(first) == hash(again), first == other) == (True, True, False)


def test_clients_that_are_behind_share_pages_of_the_log() -> None:
    async def scenario() -> None:
        feed = CountingFeed()
        start = await feed.newest()
        hub = EventHub(feed, load)
        for number in range(6):
            feed.write(f"run {number}", frequent=False)
        batches = await asyncio.gather(*(next_with_events(hub, start, EventFilter()) for _ in range(20)))
        assert len({id(batch.items[0].event) for batch in batches}) == 1
        assert feed.reads == [(start.seq, False)]

    asyncio.run(scenario())


def test_other_work_runs_between_groups_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_hub, "HEARTBEAT_S", TIMEOUT_S)
    monkeypatch.setattr(event_hub, "_WOKEN_AT_ONCE", 4)

    async def scenario() -> None:
        feed = ListFeed()
        hub = EventHub(feed, load)
        running = asyncio.create_task(hub.run())
        served: list[int] = []
        turns = 0

        async def read() -> None:
            await next_with_events(hub, None, EventFilter())
            served.append(turns)

        reading = [asyncio.create_task(read()) for _ in range(40)]
        await all_wait(hub, len(reading))
        feed.write("a", frequent=False)
        while len(served) < len(reading):
            await asyncio.sleep(0)
            turns += 1
        assert max(served.count(turn) for turn in served) <= 4
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(scenario())


def test_cursor_of_another_database_gives_a_reset() -> None:
    async def scenario() -> None:
        feed = ListFeed()
        hub = EventHub(feed, load)
        for cursor in ("1-1-8", "5-1-7", "0-1-7"):
            client = EventClient()
            items = hub.follow(client, parse_cursor(cursor), EventFilter())
            assert [item.is_reset for item in await anext(items)] == [True], cursor
            await items.aclose()  # type: ignore[attr-defined]

    asyncio.run(scenario())


def test_events_end_when_the_hub_closes() -> None:
    async def scenario() -> None:
        hub = EventHub(ListFeed(), load)
        items = hub.follow(EventClient(), None, EventFilter())
        await anext(items)
        ending = asyncio.ensure_future(anext(items, None))
        await asyncio.sleep(0)
        hub.close()
        async with asyncio.timeout(TIMEOUT_S):
            while (await ending) is not None:
                ending = asyncio.ensure_future(anext(items, None))
            assert [item async for batch in hub.follow(EventClient(), None, EventFilter()) for item in batch]

    asyncio.run(scenario())


def test_topic_keeps_its_last_change() -> None:
    rows = [
        Change(seq, 0, NOW, ChangeKind.RUN, subject, change)
        for seq, subject, change in ((1, "a", "note"), (2, "b", "note"), (3, "a", "note"), (4, "a", "tags"))
    ]
    assert [row.seq for row in latest_of_topics(rows)] == [2, 3, 4]


@pytest.mark.parametrize("text", ["", "1", "1-2", "a-b-c", "-1-2-3", "1-2-3-4", "1-2-٣"])
def test_bad_cursor_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_cursor(text)

"""The log of changes: every write adds to it, whichever server writes, in the order of the commits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import delete, text

from hopyard.domain.change import Change, ChangeKind, Position
from hopyard.domain.ids import RunId
from hopyard.domain.run import RunEvent, RunEventKind
from hopyard.stores.sql.change_feed import SqlChangeFeed
from hopyard.stores.sql.change_triggers import create_triggers
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import changes
from hopyard.testing.stores import (
    Stores,
    make_node,
    new_run,
    record_observation,
    start_run,
    time_at,
)
from tests.stores.sql.conftest import stores_over

pytestmark = pytest.mark.anyio


@pytest.fixture
def servers(url: str) -> Iterator[tuple[Database, Database]]:
    databases = Database.open(url), Database.open(url)
    yield databases
    for database in databases:
        asyncio.run(database.close())


async def changes_after(feed: SqlChangeFeed, position: Position) -> list[Change]:
    return list((await feed.read(position.seq, limit=1000)).changes)


def names_of(rows: list[Change], run: RunId) -> set[str]:
    return {row.change for row in rows if row.subject == run}


async def test_every_change_of_a_run_is_logged(database: Database) -> None:
    stores, feed = stores_over(database), SqlChangeFeed(database)
    begin = await feed.newest()
    (run,) = await stores.runs.create([new_run(label="first", tags={"a": "b"})], now=time_at(0))
    assert names_of(await changes_after(feed, begin), run.id) == {"submitted", "tags"}

    async def logged(write: object) -> set[str]:
        before = await feed.newest()
        await write  # type: ignore[misc]
        return names_of(await changes_after(feed, before), run.id)

    async def update(**fields: object) -> None:
        current = await stores.runs.get(run.id)
        spec = replace(current.spec, **{key: fields[key] for key in fields if key in ("label", "tags")})
        rest = {key: fields[key] for key in fields if key not in ("label", "tags")}
        event = RunEvent(time_at(1), RunEventKind.CHANGED, str(fields))
        await stores.cluster.update_run(current, replace(current, spec=spec, **rest), event)

    assert await logged(update(label="second")) == {"name", "event"}
    assert await logged(update(tags={})) == {"tags", "event"}
    assert await logged(update(note="look")) == {"note", "event"}
    assert await logged(stores.runs.record_summary(run.id, {"acc": 0.5})) == {"values"}
    assert await logged(stores.runs.record_summary(run.id, {"acc": 0.5})) == set(), "nothing changed"
    alert = RunEvent(time_at(2), RunEventKind.ALERT, "error: nan")
    assert await logged(stores.runs.record_event(run.id, alert)) == {"alert"}
    assert await logged(record_observation(stores, nodes=[make_node("n1", cpus=4)])) == set()
    assert await logged(start_run(stores, run.id)) >= {"phase", "attempt"}
    assert await logged(stores.runs.set_starred(run.id, "bob", True)) == set(), "a star is private"


async def test_changes_of_two_servers_are_in_one_order(servers: tuple[Database, Database]) -> None:
    first, second = (stores_over(database) for database in servers)
    feed = SqlChangeFeed(servers[0])
    begin = await feed.newest()
    (run,) = await first.runs.create([new_run()], now=time_at(0))

    async def count(stores: Stores, offset: int) -> None:
        for number in range(10):
            await stores.runs.record_summary(run.id, {"acc": float(number + offset)})

    await asyncio.gather(count(first, 0), count(second, 100))
    rows = await changes_after(feed, begin)
    assert [row.seq for row in rows] == sorted({row.seq for row in rows})
    assert len([row for row in rows if row.change == "values"]) == 20
    page = await SqlChangeFeed(servers[1]).read(rows[-1].seq, limit=10)
    assert (list(page.changes), page.until_seq, page.until_tag) == ([], rows[-1].seq, rows[-1].tag)


async def test_failed_write_is_not_logged(database: Database) -> None:
    stores, feed = stores_over(database), SqlChangeFeed(database)
    before = await feed.newest()
    with pytest.raises(RuntimeError):
        await database.write(_insert_and_fail)
    await stores.runs.create([new_run()], now=time_at(0))
    assert [row.change for row in await changes_after(feed, before)] == ["submitted"]


async def test_pruned_and_foreign_positions_are_incomplete(database: Database) -> None:
    stores, feed = stores_over(database), SqlChangeFeed(database)
    begin = await feed.newest()
    await stores.runs.create([new_run() for _ in range(10)], now=time_at(0))
    newest = await feed.newest()
    assert await feed.is_complete_after(begin)
    assert await feed.is_complete_after(newest)
    assert not await feed.is_complete_after(replace(newest, tag=newest.tag ^ 1)), "of a copy"
    assert not await feed.is_complete_after(Position(newest.seq + 1, newest.seq + 1, 0)), "of a newer copy"
    await feed.prune(4)
    assert not await feed.is_complete_after(begin)
    assert await feed.is_complete_after(newest)
    page = await feed.read(begin.seq, limit=100)
    assert page.oldest_seq > begin.seq
    assert len(page.changes) == 4


async def test_frequent_changes_are_read_apart(database: Database) -> None:
    stores, feed = stores_over(database), SqlChangeFeed(database)
    begin = await feed.newest()
    await record_observation(stores, nodes=[make_node("n1", cpus=4)])
    await stores.runs.create([new_run()], now=time_at(0))
    frequent = await feed.read(begin.seq, limit=10, frequent=True)
    assert {(row.kind, row.subject) for row in frequent.changes} == {(ChangeKind.NODE, "n1")}
    assert {row.kind for row in (await feed.read(begin.seq, limit=10, frequent=False)).changes} == {
        ChangeKind.RUN
    }


async def test_triggers_can_be_created_again(database: Database) -> None:
    feed = SqlChangeFeed(database)
    await database.write(create_triggers)
    before = await feed.newest()
    await stores_over(database).runs.create([new_run()], now=time_at(0))
    assert len(await changes_after(feed, before)) == 1, "one trigger each"
    assert (await changes_after(feed, before))[0].at - time_at(0) > timedelta(0)


def _insert_and_fail(conn: object) -> None:
    conn.execute(  # type: ignore[attr-defined]
        changes.insert().values(tag=1, at=1, kind="run", subject="x", change="lost", detail="", frequent=0)
    )
    conn.execute(text("SELECT 1"))  # type: ignore[attr-defined]
    conn.execute(delete(changes).where(changes.c.subject == "y"))  # type: ignore[attr-defined]
    raise RuntimeError

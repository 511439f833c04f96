"""The group commit: neighbours do not harm each other, and nothing ends the writer."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import Connection, bindparam, func, select, text
from sqlalchemy.exc import DBAPIError

from hopyard.errors import Conflict, NotFound, ServerUnavailable, SpecError, StorageFull
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.raw_statements import RawStatement
from hopyard.stores.sql.tables import secrets
from hopyard.testing.stores import new_run, time_at
from tests.stores.sql.conftest import stores_over
from tests.stores.sql.postgres import PostgreSQL

pytestmark = pytest.mark.anyio


def insert(name: str, size: int = 1) -> object:
    def write(conn: Connection) -> str:
        conn.execute(secrets.insert().values(name=name, value=bytes(size)))
        return name

    return write


async def names(database: Database) -> list[str]:
    return await database.read(
        lambda conn: list(conn.execute(select(secrets.c.name).order_by(secrets.c.name)).scalars())
    )


async def together(database: Database, *writes: object) -> list[object]:
    return await asyncio.gather(*(database.write(write) for write in writes), return_exceptions=True)  # type: ignore[arg-type]


async def test_one_failure_does_not_fail_its_neighbours(database: Database) -> None:
    def half_done(conn: Connection) -> None:
        insert("half")(conn)  # type: ignore[operator]
        raise Conflict("no")

    def wrong(conn: Connection) -> None:
        conn.execute(text("SELECT nothing FROM nowhere"))

    def odd(conn: Connection) -> None:
        raise ValueError("odd")

    results = await together(
        database, insert("a"), half_done, insert("b"), wrong, insert("a"), odd, insert("c")
    )
    assert [result for result in results if isinstance(result, str)] == ["a", "b", "c"]
    assert [type(results[at]) for at in (1, 5)] == [Conflict, ValueError]
    assert all(isinstance(results[at], DBAPIError) for at in (3, 4))  # faults of the code, shown as they are
    assert await names(database) == ["a", "b", "c"]


async def test_what_waits_shares_a_commit(database: Database) -> None:
    """A write sees its neighbours' before anyone else does."""
    await together(database, *(insert(f"{number:02}") for number in range(50)))
    seen: list[int] = []

    def count(conn: Connection) -> None:
        seen.append(conn.execute(select(func.count()).select_from(secrets)).scalar_one())

    await together(database, count, insert("x"), count)
    assert seen == [50, 51]


async def test_a_batch_is_given_all_that_waits_and_answers_each(database: Database) -> None:
    sizes: list[int] = []

    def batch(conn: Connection, items: Sequence[int]) -> list[int | Exception]:
        sizes.append(len(items))
        good = [item for item in items if item % 5]
        conn.execute(secrets.insert(), [{"name": f"{item:03}", "value": b""} for item in good])
        return [item if item % 5 else NotFound(str(item)) for item in items]

    calls = [database.write_together(batch, item) for item in range(100)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    for item, result in enumerate(results):
        assert result == item if item % 5 else isinstance(result, NotFound)
    assert len(sizes) < 10
    assert len(await names(database)) == 80


async def test_a_batch_that_fails_is_tried_item_by_item(database: Database) -> None:
    def batch(conn: Connection, items: Sequence[str]) -> list[str | Exception]:
        conn.execute(secrets.insert(), [{"name": item, "value": b""} for item in items])
        return list(items)

    results = await asyncio.gather(
        *(database.write_together(batch, item) for item in "abcabc"), return_exceptions=True
    )
    assert sorted(result for result in results if isinstance(result, str)) == ["a", "b", "c"]
    assert await names(database) == ["a", "b", "c"]


async def test_a_value_that_cannot_be_stored_is_the_callers_fault(database: Database) -> None:
    def write(conn: Connection) -> None:
        conn.execute(text("UPDATE counters SET value = :v").bindparams(bindparam("v", 2**70)))

    with pytest.raises(SpecError):
        await database.write(write)
    await database.write(insert("a"))  # type: ignore[arg-type]


async def test_a_caller_that_gave_up_harms_nobody(database: Database) -> None:
    gone = asyncio.ensure_future(database.write(insert("gone")))  # type: ignore[arg-type]
    kept = asyncio.ensure_future(database.write(insert("kept")))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    gone.cancel()
    assert await kept == "kept"
    assert "kept" in await names(database)


def test_callers_on_several_loops(database: Database) -> None:
    asyncio.run(together(database, insert("a")))
    abandoned = asyncio.new_event_loop()
    task = abandoned.create_task(database.write(insert("b")))  # type: ignore[arg-type]
    abandoned.run_until_complete(asyncio.sleep(0))
    task.cancel()
    abandoned.run_until_complete(asyncio.gather(task, return_exceptions=True))
    abandoned.close()
    asyncio.run(together(database, insert("c")))
    assert asyncio.run(names(database)) == ["a", "b", "c"]


async def test_close_finishes_what_waits(url: str) -> None:
    database = Database.open(url)
    writes = [asyncio.ensure_future(database.write(insert(str(number)))) for number in range(20)]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await database.close()
    await asyncio.gather(*writes)
    for refused in (database.write(insert("late")), database.read(lambda conn: None)):  # type: ignore[arg-type]
        with pytest.raises(ServerUnavailable):
            await refused
    again = Database.open(url)
    assert len(await names(again)) == 20
    await again.close()


COUNT, NONSENSE = (
    RawStatement(select(func.count()).select_from(secrets)),
    RawStatement(text("SELECT nothing FROM nowhere")),
)


async def test_what_needs_no_other_thread_is_seen_as_it_is(sqlite_database: Database) -> None:
    """Each time anew, and again after something went wrong."""

    def count() -> int | None:
        found = sqlite_database.read_nowait(COUNT.fetch_all)
        return None if found is None else int(found[0][0])

    for number in range(3):
        assert count() == number
        await sqlite_database.write(insert(str(number)))  # type: ignore[arg-type]
        assert sqlite_database.read_nowait(NONSENSE.fetch_all) is None
    assert count() == 3
    await sqlite_database.close()
    assert count() is None


async def test_behind_a_network_another_thread_is_asked(postgres_database: Database) -> None:
    assert postgres_database.read_nowait(COUNT.fetch_all) is None


async def test_a_lost_link_is_made_anew(postgres: PostgreSQL, postgres_database: Database) -> None:
    for number in range(3):
        await postgres_database.write(insert(str(number)))  # type: ignore[arg-type]
        await names(postgres_database)
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hopyard'"
        )
    results = await together(postgres_database, *(insert(f"x{number}") for number in range(10)))
    assert not [result for result in results if isinstance(result, Exception)]
    assert len(await names(postgres_database)) == 13


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "hopyard-test", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("no file system may be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_is_said_and_passes(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    database = Database.open(small_disk / "hopyard.db")
    stores = stores_over(database)
    accepted = [(await stores.runs.create([new_run()], now=time_at(0)))[0].id]
    ballast.write_bytes(bytes(1024 * 1024))
    with pytest.raises(StorageFull) as raised:
        for _ in range(200):
            (run,) = await stores.runs.create([new_run(env={"X": "x" * 20_000})], now=time_at(0))
            accepted.append(run.id)
    assert raised.value.hints
    ballast.unlink()
    (run,) = await stores.runs.create([new_run()], now=time_at(0))
    assert run.name.number == len(accepted) + 1  # the refused one took no number
    assert {gang.id for gang in (await stores.cluster.snapshot(now=time_at(0))).pending} == {
        *accepted,
        run.id,
    }
    assert await database.read(lambda conn: conn.exec_driver_sql("PRAGMA integrity_check").scalar()) == "ok"
    await database.close()


async def test_a_full_database_refuses_only_what_is_too_large(sqlite_database: Database) -> None:
    def limit(conn: Connection) -> None:
        pages = conn.exec_driver_sql("PRAGMA page_count").scalar_one()
        conn.exec_driver_sql(f"PRAGMA max_page_count={pages + 4}")

    await sqlite_database.write(limit)
    results = await together(sqlite_database, insert("a"), insert("large", 1_000_000), insert("b"))
    assert [result if isinstance(result, str) else type(result) for result in results] == [
        "a",
        StorageFull,
        "b",
    ]
    assert await names(sqlite_database) == ["a", "b"]

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


async def write_all(database: Database, *writes: object) -> list[object]:
    return await asyncio.gather(*(database.write(write) for write in writes), return_exceptions=True)  # type: ignore[arg-type]


async def test_failed_write_does_not_fail_writes_of_its_transaction(database: Database) -> None:
    def partial_write(conn: Connection) -> None:
        insert("half")(conn)  # type: ignore[operator]
        raise Conflict("no")

    def wrong(conn: Connection) -> None:
        conn.execute(text("SELECT nothing FROM nowhere"))

    def failing_write(conn: Connection) -> None:
        raise ValueError("odd")

    results = await write_all(
        database, insert("a"), partial_write, insert("b"), wrong, insert("a"), failing_write, insert("c")
    )
    assert [result for result in results if isinstance(result, str)] == ["a", "b", "c"]
    assert [type(results[at]) for at in (1, 5)] == [Conflict, ValueError]
    assert all(isinstance(results[at], DBAPIError) for at in (3, 4))  # faults of the code, shown as they are
    assert await names(database) == ["a", "b", "c"]


async def test_waiting_writes_share_a_commit(database: Database) -> None:
    """A write sees the other writes of its transaction before any reader."""
    await write_all(database, *(insert(f"{number:02}") for number in range(50)))
    counts: list[int] = []

    def count(conn: Connection) -> None:
        counts.append(conn.execute(select(func.count()).select_from(secrets)).scalar_one())

    await write_all(database, count, insert("x"), count)
    assert counts == [50, 51]


async def test_batch_gets_all_waiting_items_and_answers_each(database: Database) -> None:
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


async def test_failed_batch_is_retried_item_by_item(database: Database) -> None:
    def batch(conn: Connection, items: Sequence[str]) -> list[str | Exception]:
        conn.execute(secrets.insert(), [{"name": item, "value": b""} for item in items])
        return list(items)

    results = await asyncio.gather(
        *(database.write_together(batch, item) for item in "abcabc"), return_exceptions=True
    )
    assert sorted(result for result in results if isinstance(result, str)) == ["a", "b", "c"]
    assert await names(database) == ["a", "b", "c"]


async def test_unstorable_value_is_an_error_of_the_caller(database: Database) -> None:
    def write(conn: Connection) -> None:
        conn.execute(text("UPDATE counters SET value = :v").bindparams(bindparam("v", 2**70)))

    with pytest.raises(SpecError):
        await database.write(write)
    await database.write(insert("a"))  # type: ignore[arg-type]


async def test_cancelled_caller_does_not_affect_others(database: Database) -> None:
    cancelled = asyncio.ensure_future(database.write(insert("gone")))  # type: ignore[arg-type]
    remaining = asyncio.ensure_future(database.write(insert("kept")))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await remaining == "kept"
    assert "kept" in await names(database)


def test_callers_on_several_loops(database: Database) -> None:
    asyncio.run(write_all(database, insert("a")))
    abandoned = asyncio.new_event_loop()
    task = abandoned.create_task(database.write(insert("b")))  # type: ignore[arg-type]
    abandoned.run_until_complete(asyncio.sleep(0))
    task.cancel()
    abandoned.run_until_complete(asyncio.gather(task, return_exceptions=True))
    abandoned.close()
    asyncio.run(write_all(database, insert("c")))
    assert asyncio.run(names(database)) == ["a", "b", "c"]


async def test_close_finishes_waiting_writes(url: str) -> None:
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


async def test_read_nowait_sees_current_rows(sqlite_database: Database) -> None:
    """Each call reads again, also after an error."""

    def count() -> int | None:
        result = sqlite_database.read_nowait(COUNT.fetch_all)
        return None if result is None else int(result[0][0])

    for number in range(3):
        assert count() == number
        await sqlite_database.write(insert(str(number)))  # type: ignore[arg-type]
        assert sqlite_database.read_nowait(NONSENSE.fetch_all) is None
    assert count() == 3
    await sqlite_database.close()
    assert count() is None


async def test_read_nowait_is_unavailable_on_postgresql(postgres_database: Database) -> None:
    assert postgres_database.read_nowait(COUNT.fetch_all) is None


async def test_lost_connection_is_reopened(postgres: PostgreSQL, postgres_database: Database) -> None:
    for number in range(3):
        await postgres_database.write(insert(str(number)))  # type: ignore[arg-type]
        await names(postgres_database)
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hopyard'"
        )
    results = await write_all(postgres_database, *(insert(f"x{number}") for number in range(10)))
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


async def test_full_disk_is_reported_and_recovered_from(small_disk: Path) -> None:
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
    assert run.name.number == len(accepted) + 1  # the refused run used no number
    assert {gang.id for gang in (await stores.cluster.snapshot(now=time_at(0))).pending} == {
        *accepted,
        run.id,
    }
    assert await database.read(lambda conn: conn.exec_driver_sql("PRAGMA integrity_check").scalar()) == "ok"
    await database.close()


async def test_full_database_refuses_only_large_writes(sqlite_database: Database) -> None:
    def limit(conn: Connection) -> None:
        pages = conn.exec_driver_sql("PRAGMA page_count").scalar_one()
        conn.exec_driver_sql(f"PRAGMA max_page_count={pages + 4}")

    await sqlite_database.write(limit)
    results = await write_all(sqlite_database, insert("a"), insert("large", 1_000_000), insert("b"))
    assert [result if isinstance(result, str) else type(result) for result in results] == [
        "a",
        StorageFull,
        "b",
    ]
    assert await names(sqlite_database) == ["a", "b"]

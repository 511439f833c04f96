"""Statements sent directly to the driver behave and fail like those of SQLAlchemy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Connection, bindparam, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from hopyard.errors import ServerUnavailable, SpecError
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.raw_statements import RawSelectByIds, RawStatement
from hopyard.stores.sql.tables import counters, lease, promises, secrets
from tests.stores.sql.postgres import PostgreSQL

pytestmark = pytest.mark.anyio

INSERT = RawStatement(secrets.insert())
CHANGE = RawStatement(
    update(secrets).where(secrets.c.name == bindparam("b_name"), secrets.c.value != b"kept")
)
ALL = RawStatement(select(secrets.c.name, secrets.c.value).order_by(secrets.c.name))
BY_NAME = RawSelectByIds(select(secrets.c.name), secrets.c.name)
ONE = RawStatement(select(secrets.c.value).where(secrets.c.name == bindparam("b_name")))


def fill(conn: Connection) -> int:
    return INSERT.execute_many(conn, [{"name": name, "value": name.encode()} for name in "abc"])


async def test_insert_update_and_select(database: Database) -> None:
    def write(conn: Connection) -> list[Any]:
        counts = [fill(conn), INSERT.execute_many(conn, [])]
        counts.append(
            CHANGE.execute_many(conn, [{"b_name": "a", "value": b"kept"}, {"b_name": "nobody", "value": b""}])
        )
        counts.append(
            CHANGE.execute_many(
                conn, [{"b_name": "a", "value": b"lost"}, {"b_name": "c", "value": bytes(range(256))}]
            )
        )
        return counts

    assert await database.write(write) == [3, 0, 1, 1]
    result = await database.read(ALL.fetch_all)
    assert [(name, bytes(value)) for name, value in result] == [
        ("a", b"kept"),
        ("b", b"b"),
        ("c", bytes(range(256))),
    ]
    for name, expected in (("b", [b"b"]), ("x", [])):
        rows = await database.read(lambda conn, name=name: ONE.fetch_all(conn, {"b_name": name}))  # type: ignore[misc]
        assert [bytes(value) for (value,) in rows] == expected


async def test_any_number_of_ids_is_selected(database: Database) -> None:
    names = [f"n{number:03}" for number in range(200)]
    await database.write(
        lambda conn: INSERT.execute_many(conn, [{"name": name, "value": b""} for name in names])
    )
    for count in (0, 1, 2, 4, 5, 63, 64, 65, 129, 200):
        ids = [*names[:count], "nobody"] if count % 2 else names[:count]
        rows = await database.read(lambda conn, ids=ids: list(BY_NAME.fetch_all(conn, ids)))  # type: ignore[misc]
        assert sorted(name for (name,) in rows) == names[:count]


async def test_literal_values_of_the_statement_are_bound(database: Database) -> None:
    """Literal values beside those of each row, booleans, None, and other names for the same statement."""
    start = RawStatement(
        update(counters)
        .where(counters.c.name == bindparam("b_name"), counters.c.value < 10)
        .values(value=counters.c.value + bindparam("b_more"))
    )
    lead, insert = RawStatement(update(lease)), RawStatement(promises.insert())

    def write(conn: Connection) -> tuple[int, int]:
        conn.execute(counters.insert(), [{"name": "a", "value": 1}, {"name": "b", "value": 10}])
        moved = start.execute_many(conn, [{"b_name": "a", "b_more": 5}, {"b_name": "b", "b_more": 5}])
        return moved, lead.execute_many(conn, [{"holder": "me"}]) + lead.execute_many(
            conn, [{"holder": None, "epoch": 7}]
        )

    assert await database.write(write) == (1, 2)
    values = RawStatement(select(counters.c.name, counters.c.value).order_by(counters.c.name))
    assert [tuple(row) for row in await database.read(values.fetch_all)] == [("a", 6), ("b", 10)]
    assert await database.read(lambda conn: conn.execute(select(lease.c.holder, lease.c.epoch)).one()) == (
        None,
        7,
    )
    with pytest.raises(IntegrityError):  # there is no such run: the boolean was accepted
        await database.write(
            lambda conn: insert.execute_many(
                conn, [{"run": "x", "start_at": 1, "given_at": 1, "nodes": "[]", "made_room": True}]
            )
        )


async def test_errors_are_sqlalchemy_errors_and_roll_back(database: Database) -> None:
    await database.write(fill)

    def twice(conn: Connection) -> None:
        INSERT.execute_many(conn, [{"name": "d", "value": b""}, {"name": "a", "value": b""}])

    for _ in range(2):
        with pytest.raises(IntegrityError):
            await database.write(twice)
    with pytest.raises(DBAPIError):
        await database.read(
            RawStatement(select(secrets.c.name).where(secrets.c.name.op("~~nonsense~~")("x"))).fetch_all
        )
    with pytest.raises(SpecError):
        await database.write(
            lambda conn: RawStatement(update(counters)).execute_many(conn, [{"value": 2**70}])
        )
    assert [name for name, _ in await database.read(ALL.fetch_all)] == ["a", "b", "c"]


async def test_lost_connection_is_reopened(postgres: PostgreSQL, postgres_database: Database) -> None:
    await postgres_database.write(fill)
    for name in "xyz":
        await postgres_database.read(ALL.fetch_all)
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hopyard'"
        )
        assert (
            await postgres_database.write(
                lambda conn, name=name: INSERT.execute_many(conn, [{"name": name, "value": b""}])
            )
            == 1
        )  # type: ignore[misc]
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hopyard'"
        )
        assert len(await postgres_database.read(ALL.fetch_all)) == 3 + "xyz".index(name) + 1


async def test_connection_lost_in_a_write_is_reported(
    postgres: PostgreSQL, postgres_database: Database
) -> None:
    def write(conn: Connection) -> None:
        fill(conn)
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hopyard'"
        )
        fill(conn)

    with pytest.raises(ServerUnavailable):
        await postgres_database.write(write)
    assert await postgres_database.write(fill) == 3
    assert await asyncio.gather(*(postgres_database.read(ALL.fetch_all) for _ in range(3)))

"""Statements that go to the driver right away do what SQLAlchemy would, and fail as it does."""

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


def filled(conn: Connection) -> int:
    return INSERT.execute_many(conn, [{"name": name, "value": name.encode()} for name in "abc"])


async def test_it_inserts_changes_and_finds(database: Database) -> None:
    def write(conn: Connection) -> list[Any]:
        counts = [filled(conn), INSERT.execute_many(conn, [])]
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
    found = await database.read(ALL.fetch_all)
    assert [(name, bytes(value)) for name, value in found] == [
        ("a", b"kept"),
        ("b", b"b"),
        ("c", bytes(range(256))),
    ]
    for name, expected in (("b", [b"b"]), ("x", [])):
        rows = await database.read(lambda conn, name=name: ONE.fetch_all(conn, {"b_name": name}))  # type: ignore[misc]
        assert [bytes(value) for (value,) in rows] == expected


async def test_any_number_of_ids_is_found(database: Database) -> None:
    names = [f"n{number:03}" for number in range(200)]
    await database.write(
        lambda conn: INSERT.execute_many(conn, [{"name": name, "value": b""} for name in names])
    )
    for count in (0, 1, 2, 4, 5, 63, 64, 65, 129, 200):
        asked = [*names[:count], "nobody"] if count % 2 else names[:count]
        rows = await database.read(lambda conn, asked=asked: list(BY_NAME.fetch_all(conn, asked)))  # type: ignore[misc]
        assert sorted(name for (name,) in rows) == names[:count]


async def test_what_the_statement_says_itself_is_given_too(database: Database) -> None:
    """Values of its own beside those of each row; truth values, nothing, and other names for the same
    statement."""
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
    with pytest.raises(IntegrityError):  # there is no such run: the truth value was taken
        await database.write(
            lambda conn: insert.execute_many(
                conn, [{"run": "x", "start_at": 1, "given_at": 1, "nodes": "[]", "made_room": True}]
            )
        )


async def test_errors_are_those_of_sqlalchemy_and_undo_the_write(database: Database) -> None:
    await database.write(filled)

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


async def test_a_lost_link_is_made_anew(postgres: PostgreSQL, postgres_database: Database) -> None:
    await postgres_database.write(filled)
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


async def test_a_link_lost_in_the_middle_is_said(postgres: PostgreSQL, postgres_database: Database) -> None:
    def write(conn: Connection) -> None:
        filled(conn)
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hopyard'"
        )
        filled(conn)

    with pytest.raises(ServerUnavailable):
        await postgres_database.write(write)
    assert await postgres_database.write(filled) == 3
    assert await asyncio.gather(*(postgres_database.read(ALL.fetch_all) for _ in range(3)))

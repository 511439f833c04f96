from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from hopyard.stores.sql.access import SqlAccessStore
from hopyard.stores.sql.audit import SqlAuditStore
from hopyard.stores.sql.cluster import SqlClusterStore
from hopyard.stores.sql.commands import SqlCommandStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.datasets import SqlDatasetStore
from hopyard.stores.sql.notifications import SqlNotificationStore
from hopyard.stores.sql.queues import SqlQueueStore
from hopyard.stores.sql.reservations import SqlReservationStore
from hopyard.stores.sql.runs import SqlRunStore
from hopyard.stores.sql.saved_views import SqlSavedViewStore
from hopyard.stores.sql.sessions import SqlSessionStore
from hopyard.stores.sql.tables import changes, lease, marks, metadata
from hopyard.stores.sql.usage import SqlUsageStore
from hopyard.testing.stores import Stores
from tests.stores.sql.postgres import PostgreSQL, running_postgres, server_programs


def stores_over(database: Database) -> Stores:
    return Stores(
        SqlRunStore(database),
        SqlClusterStore(database),
        SqlQueueStore(database),
        SqlReservationStore(database),
        SqlUsageStore(database),
        SqlCommandStore(database),
        SqlNotificationStore(database),
        SqlDatasetStore(database),
        SqlAccessStore(database),
        SqlAuditStore(database),
        SqlSessionStore(database),
        SqlSavedViewStore(database),
    )


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgreSQL]:
    if server_programs() is None:
        pytest.skip("PostgreSQL is not installed")
    with running_postgres() as server:
        yield server


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[Database]:
    yield from _open(tmp_path / "hopyard.db")


@pytest.fixture(scope="session")
def used_database(postgres: PostgreSQL) -> str:
    """The URL of a database with all tables: emptying it costs less than creating another one."""
    url = postgres.new_database()
    asyncio.run(Database.open(url).close())
    return url


@pytest.fixture
def postgres_database(used_database: str) -> Iterator[Database]:
    for database in _open(used_database):
        asyncio.run(database.write(_clear))
        yield database


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, SQLite and PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/hopyard.db"
    server: PostgreSQL = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    yield from _open(url)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _clear(conn: Connection) -> None:
    """Restores the state of a new database."""
    for table in reversed(metadata.sorted_tables):
        if table not in (marks, lease, changes):
            conn.execute(table.delete())
    conn.execute(marks.update().values({column.name: 0 for column in marks.columns if column.name != "id"}))
    conn.execute(lease.update().values(holder=None, epoch=0, expires_at=0))


def _open(url: str | Path) -> Iterator[Database]:
    database = Database.open(url)
    try:
        yield database
    finally:
        asyncio.run(database.close())

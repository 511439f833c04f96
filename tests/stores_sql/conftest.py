from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.stores.sql.access import SqlAccessStore
from hopyard.stores.sql.cluster import SqlClusterStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.datasets import SqlDatasetStore
from hopyard.stores.sql.queues import SqlQueueStore
from hopyard.stores.sql.reservations import SqlReservationStore
from hopyard.stores.sql.runs import SqlRunStore
from hopyard.testing.stores import Stores
from tests.stores_sql.postgres import PostgreSQL, running_postgres, server_programs


def stores_over(database: Database) -> Stores:
    return Stores(
        SqlRunStore(database),
        SqlClusterStore(database),
        SqlQueueStore(database),
        SqlReservationStore(database),
        SqlDatasetStore(database),
        SqlAccessStore(database),
    )


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgreSQL]:
    if server_programs() is None:
        pytest.skip("PostgreSQL is not installed")
    with running_postgres() as server:
        yield server


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[Database]:
    yield from _opened(tmp_path / "hopyard.db")


@pytest.fixture
def postgres_database(postgres: PostgreSQL) -> Iterator[Database]:
    yield from _opened(postgres.new_database())


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/hopyard.db"
    server: PostgreSQL = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    yield from _opened(url)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _opened(url: str | Path) -> Iterator[Database]:
    database = Database.open(url)
    try:
        yield database
    finally:
        asyncio.run(database.close())

"""A created and a migrated database are equal, and an ordinary start does not import Alembic."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Boolean, Connection, MetaData, Table, create_engine, inspect, select, text

from hopyard.domain.gang import Assignment
from hopyard.domain.ids import NodeId, RunId
from hopyard.domain.resources import Resources
from hopyard.domain.run import RunPhase
from hopyard.errors import IntegrityError, ServerUnavailable, SpecError
from hopyard.stores.sql.codec import to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.schema import MIGRATIONS, migrate
from hopyard.stores.sql.tables import HEAD, counters, lease, marks, metadata
from hopyard.testing.stores import (
    GIB,
    make_digest,
    make_node,
    new_run,
    record_observation,
    start_run,
    time_at,
)
from tests.stores.sql.conftest import stores_over


def engine_of(url: str):  # type: ignore[no-untyped-def]
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


@pytest.fixture(params=["created", "migrated"])
def created_url(url: str, request: pytest.FixtureRequest) -> str:
    if request.param == "created":
        Database.open(url)
    else:
        with engine_of(url).begin() as conn:
            migrate(conn, None)
    return url


def test_head_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def test_tables_match_the_code(created_url: str) -> None:
    with engine_of(created_url).connect() as conn:
        assert compare_metadata(MigrationContext.configure(conn), metadata) == []
        assert set(inspect(conn).get_table_names()) == {*metadata.tables, "alembic_version"}
        assert conn.execute(text("SELECT version_num FROM alembic_version")).scalar() == HEAD
        assert conn.execute(select(counters)).all() == []
        assert conn.execute(select(marks)).all() == [(1, *[0] * (len(marks.columns) - 1))]
        assert conn.execute(select(lease)).all() == [(1, None, 0, 0)]


def test_created_and_migrated_sqlite_files_are_equal(tmp_path: Path) -> None:
    """But for the order of columns: a migration adds them at the end."""
    Database.open(tmp_path / "created.db")
    with create_engine(f"sqlite:///{tmp_path}/migrated.db").begin() as conn:
        migrate(conn, None)
    definitions = []
    for name in ("created.db", "migrated.db"):
        with create_engine(f"sqlite:///{tmp_path}/{name}").connect() as conn:
            definitions.append(
                {
                    kind: sorted(conn.execute(text(query)).all(), key=str)
                    for kind, query in DEFINITIONS.items()
                }
            )
    assert definitions[0] == definitions[1]
    assert all(definitions[0].values())


DEFINITIONS = {
    "columns": (
        'SELECT m.name, c.name, c.type, c."notnull", c.dflt_value, c.pk FROM sqlite_master m JOIN '
        "pragma_table_info(m.name) c"
    ),
    "keys": "SELECT m.name, k.* FROM sqlite_master m JOIN pragma_foreign_key_list(m.name) k",
    "indexes": "SELECT name, sql FROM sqlite_master WHERE type = 'index'",
}


@contextmanager
def upgraded(url: str, version: str) -> Iterator[tuple[Connection, Mapping[str, Table]]]:
    """Migrates the database to this version and yields a connection and its tables."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine_of(url).begin() as conn:
        config.attributes["connection"] = conn
        command.upgrade(config, version)
        tables = MetaData()
        tables.reflect(conn)
        yield conn, tables.tables


def database_0001(url: str) -> None:
    """Creates a database of version 0001, with rows written by its code (tests/stores/sql/rows_0001.json)."""
    with upgraded(url, "0001") as (conn, tables):
        conn.execute(tables["counters"].delete())
        rows = json.loads((Path(__file__).parent / "rows_0001.json").read_text())
        for table in sorted(rows, key=lambda name: (name != "runs", name)):  # referenced tables first
            flags = {
                column.name for column in metadata.tables[table].columns if isinstance(column.type, Boolean)
            }
            conn.execute(
                tables[table].insert(),
                [{k: bool(v) if k in flags else v for k, v in row.items()} for row in rows[table]],
            )


@pytest.mark.anyio
async def test_database_of_0001_is_migrated(url: str) -> None:
    database_0001(url)
    database = Database.open(url)
    stores = stores_over(database)
    snapshot = await stores.cluster.snapshot(now=time_at(10))
    (running,) = snapshot.running
    assert (running.gang.id, running.gang.roles[0].resources) == (
        "r-running-1",
        Resources(500, GIB, 1, ("A100",)),
    )
    assert (running.gang.time_limit_s, running.gang.input_digests, running.gang.script) == (
        60.0,
        (make_digest("m"),),
        "mnist:main.py",
    )
    assert (running.started_at, running.saved_at, running.placement.assignments) == (
        time_at(3),
        time_at(5),
        (Assignment(0, NodeId("n1"), (1,)),),
    )
    assert {gang.id: gang.input_digests for gang in snapshot.pending} == {
        "r-queued-1": (make_digest("lock"), make_digest("req")),
        "r-lost-1": (),
    }
    assert snapshot.nodes["n1"] == make_node(gpus=2, model="A100")
    done = await stores.runs.get(RunId("r-done-1"))
    assert (done.phase, done.spec.tags, done.attempt is not None and done.attempt.counts) == (
        RunPhase.SUCCEEDED,
        {"k": "v"},
        (1,),
    )
    assert (await stores.runs.get(RunId("r-running-1"))).params == {"lr": 0.1, "inf": float("inf")}
    assert (await stores.runs.get(RunId("r-queued-1"))).spec.roles[0].resources == Resources(500, GIB, 1)
    push = await stores.datasets.push(
        "mnist", make_digest("z"), size_bytes=1, files=1, user="a", message="", now=time_at(10)
    )
    assert push[0].number == 2  # its version 1 was deleted, and a run had read it
    (again,) = await stores.runs.create(
        [new_run(id=RunId("r-done-1"), resources=Resources(500, GIB), tags={"k": "v"})], now=time_at(11)
    )
    assert again.phase is RunPhase.SUCCEEDED  # a retry of a submission accepted before the upgrade
    assert await start_run(stores, RunId("r-queued-1"), ("n1", (0,)), seconds=12) == "r-queued-1.1"
    assert (await record_observation(stores, nodes=[], seconds=13)).requeued == ("r-running-1",)
    assert await stores.runs.attempts(RunId("r-lost-1")) != []
    held = await stores.usage.usage(time_at(0), time_at(10), now=time_at(10))
    assert [(one.user, one.attempts, one.held_s, one.cpu_s) for one in held] == [("alice", 3, 14.0, 7.0)]
    await database.close()


@pytest.mark.anyio
async def test_unreadable_gang_does_not_prevent_the_migration(url: str) -> None:
    database_0001(url)
    with upgraded(url, "0007") as (conn, tables):
        conn.execute(tables["runs"].update().where(tables["runs"].c.id == "r-done-1").values(gang="none"))
    database = Database.open(url)
    held = await stores_over(database).usage.usage(time_at(0), time_at(10), now=time_at(10))
    assert [(one.user, one.attempts, one.held_s, one.cpu_s) for one in held] == [("alice", 3, 14.0, 5.0)]
    await database.close()


@pytest.mark.anyio
async def test_promises_of_0004_keep_their_preemptor(url: str) -> None:
    database_0001(url)
    with upgraded(url, "0004") as (conn, tables):
        times = {"r-queued-1": (time_at(0), time_at(60.9)), "r-lost-1": (time_at(0), time_at(61))}
        rows = [
            {"run": run, "given_at": to_us(given_at), "start_at": to_us(start), "nodes": "[]"}
            for run, (given_at, start) in times.items()
        ]
        conn.execute(tables["promises"].insert(), rows)
    database = Database.open(url)
    promises = (await stores_over(database).cluster.snapshot(now=time_at(10))).promises
    assert {run: promise.has_preempted for run, promise in promises.items()} == {
        "r-queued-1": True,
        "r-lost-1": False,
    }
    await database.close()


@pytest.mark.anyio
async def test_incomplete_offline_run_of_0017_is_being_synced(url: str) -> None:
    database_0001(url)
    with upgraded(url, "0017") as (conn, tables):
        runs = tables["runs"]
        ended = {
            "phase": "failed",
            "offline": True,
            "ended_at": to_us(time_at(1)),
            "exit": '{"kind": "lost", "code": 1, "reason": "not completed"}',
        }
        conn.execute(runs.update().where(runs.c.id.in_(("r-queued-1", "r-done-1"))).values(ended))
    database = Database.open(url)
    stores = stores_over(database)
    queued, done = await stores.runs.get(RunId("r-queued-1")), await stores.runs.get(RunId("r-done-1"))
    assert (queued.phase, queued.is_being_synced, queued.ended_at, queued.exit) == (
        RunPhase.RUNNING,
        True,
        None,
        None,
    )
    assert (done.phase, done.is_being_synced) == (RunPhase.FAILED, False), "its record is complete"
    await database.close()


def test_reopening_keeps_the_rows(created_url: str) -> None:
    for _ in range(2):
        Database.open(created_url)
    with engine_of(created_url).connect() as conn:
        assert conn.execute(text("SELECT count(*) FROM marks")).scalar() == 1


def test_newer_database_is_refused(created_url: str) -> None:
    with engine_of(created_url).begin() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(IntegrityError, match="9999"):
        Database.open(created_url)


def test_foreign_database_is_refused(url: str) -> None:
    with engine_of(url).begin() as conn:
        conn.execute(text("CREATE TABLE runs (id integer)"))
    with pytest.raises(IntegrityError):
        Database.open(url)


def test_alembic_is_not_imported_to_create_or_open(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hopyard.stores.sql.database import Database\n"
        "Database.open(Path(sys.argv[1])); Database.open(Path(sys.argv[1])); sys.exit('alembic' in "
        "sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "hopyard.db")], check=True)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "mysql://x/y", "no address", "postgresql+psycopg2://x/y:z:w"]
)
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises((SpecError, ServerUnavailable)):
        Database.open(url)


def test_unreachable_server(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable):
        Database.open(f"postgresql://nobody@/none?host={tmp_path}")


def test_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "hopyard.db").write_bytes(b"not a database, " * 100)
    with pytest.raises(IntegrityError):
        Database.open(tmp_path / "hopyard.db")

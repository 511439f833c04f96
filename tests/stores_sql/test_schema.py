"""A database made in one step and one that was migrated are the same, and Alembic stays out of an ordinary start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, select, text

from hopyard.errors import IntegrityError, ServerUnavailable, SpecError
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.schema import MIGRATIONS, migrate
from hopyard.stores.sql.tables import HEAD, counters, metadata


def engine_of(url: str):  # type: ignore[no-untyped-def]
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


@pytest.fixture(params=["created", "migrated"])
def made(url: str, request: pytest.FixtureRequest) -> str:
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


def test_the_tables_are_those_of_the_code(made: str) -> None:
    with engine_of(made).connect() as conn:
        assert compare_metadata(MigrationContext.configure(conn), metadata) == []
        assert set(inspect(conn).get_table_names()) == {*metadata.tables, "alembic_version"}
        assert conn.execute(text("SELECT version_num FROM alembic_version")).scalar() == HEAD
        assert {row.name: row.value for row in conn.execute(select(counters))} == {"version": 0, "hold_base": 0}


def test_both_ways_make_the_same_sqlite_file(tmp_path: Path) -> None:
    Database.open(tmp_path / "created.db")
    with create_engine(f"sqlite:///{tmp_path}/migrated.db").begin() as conn:
        migrate(conn, None)
    definitions = []
    for name in ("created.db", "migrated.db"):
        with create_engine(f"sqlite:///{tmp_path}/{name}").connect() as conn:
            rows = conn.execute(text("SELECT name, sql FROM sqlite_master WHERE name != 'alembic_version' AND sql IS NOT NULL"))
            definitions.append({name: sorted(part.strip(" ,") for part in sql.split("\n")) for name, sql in rows})
    assert definitions[0] == definitions[1]


def test_opening_again_keeps_what_is_there(made: str) -> None:
    for _ in range(2):
        Database.open(made)
    with engine_of(made).connect() as conn:
        assert conn.execute(text("SELECT count(*) FROM counters")).scalar() == 2


def test_a_newer_database_is_refused(made: str) -> None:
    with engine_of(made).begin() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(IntegrityError, match="9999"):
        Database.open(made)


def test_a_database_of_something_else_is_refused(url: str) -> None:
    with engine_of(url).begin() as conn:
        conn.execute(text("CREATE TABLE runs (id integer)"))
    with pytest.raises(IntegrityError):
        Database.open(url)


def test_alembic_is_not_imported_to_create_or_open(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hopyard.stores.sql.database import Database\n"
        "Database.open(Path(sys.argv[1])); Database.open(Path(sys.argv[1])); sys.exit('alembic' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "hopyard.db")], check=True)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://x/y", "no address", "postgresql+psycopg2://x/y:z:w"])
def test_a_bad_address_is_refused(url: str) -> None:
    with pytest.raises((SpecError, ServerUnavailable)):
        Database.open(url)


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable):
        Database.open(f"postgresql://nobody@/none?host={tmp_path}")


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "hopyard.db").write_bytes(b"not a database, " * 100)
    with pytest.raises(IntegrityError):
        Database.open(tmp_path / "hopyard.db")

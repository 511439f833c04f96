"""Migrates a database to the newest schema. Imports Alembic only if a migration is needed."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, inspect, select

from hopyard.errors import IntegrityError
from hopyard.stores.sql.change_triggers import create_triggers
from hopyard.stores.sql.tables import HEAD, lease, marks, metadata

MIGRATIONS = Path(__file__).parent / "migrations"
# As Alembic creates it, so that a database created in one step can be migrated later.
_version = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))


def upgrade_to_head(engine: Engine) -> None:
    """Creates all tables in an empty database, migrates an older one, and leaves one at head unchanged; all
    or nothing.

    Raises IntegrityError for a database that a newer Hopyard wrote, or that contains tables of another
    program.
    """
    with engine.begin() as conn:
        version = _read_version(conn)
        if version == HEAD:
            return
        if version is None:
            _create_all(conn)
        else:
            migrate(conn, version)


def _read_version(conn: Connection) -> str | None:
    """Returns the version of the schema; None for an empty database."""
    tables = inspect(conn).get_table_names()
    if _version.name in tables:
        return conn.execute(select(_version.c.version_num)).scalar()
    if set(tables) & set(metadata.tables):
        raise IntegrityError(
            "the database holds tables of another program",
            hints=("use a separate database for Hopyard",),
        )
    return None


def _create_all(conn: Connection) -> None:
    metadata.create_all(conn)
    _version.create(conn)
    conn.execute(_version.insert().values(version_num=HEAD))
    conn.execute(
        marks.insert().values(
            {"id": 1, **{column.name: 0 for column in marks.columns if column.name != "id"}}
        )
    )
    conn.execute(lease.insert().values(id=1, epoch=0, expires_at=0))
    create_triggers(conn)


def migrate(conn: Connection, current_version: str | None) -> None:
    """Runs the migrations from `current_version` (None: from nothing) to head inside the transaction of
    `conn`."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current_version is not None and current_version not in revisions:
        raise IntegrityError(
            f"the database has schema {current_version}, which this version of Hopyard does not know",
            hints=("it was written by a newer version: upgrade with `pip install -U hopyard`",),
        )
    config.attributes["connection"] = conn
    command.upgrade(config, "head")
    create_triggers(conn)

"""Bringing a database to the newest schema. Alembic is imported only where there is something to migrate."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, inspect, select

from hopyard.errors import IntegrityError
from hopyard.stores.sql.tables import HEAD, lease, marks, metadata

MIGRATIONS = Path(__file__).parent / "migrations"
# As Alembic makes it, so that a database made in one step can be migrated later.
_version = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))


def upgrade_to_head(engine: Engine) -> None:
    """Create all tables in an empty database, migrate an older one, leave one that is at head alone; all or
    nothing.

    Raises IntegrityError for a database that a newer Hopyard has written, or that belongs to something else.
    """
    with engine.begin() as conn:
        found = _read_version(conn)
        if found == HEAD:
            return
        if found is None:
            _create_all(conn)
        else:
            migrate(conn, found)


def _read_version(conn: Connection) -> str | None:
    """The schema's version; None for an empty database."""
    tables = inspect(conn).get_table_names()
    if _version.name in tables:
        return conn.execute(select(_version.c.version_num)).scalar()
    if set(tables) & set(metadata.tables):
        raise IntegrityError(
            "the database holds tables that Hopyard has not made",
            hints=("give Hopyard a database of its own",),
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


def migrate(conn: Connection, current_version: str | None) -> None:
    """Run the migrations from `current_version` (None: from nothing) to head inside the transaction of
    `conn`."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current_version is not None and current_version not in known:
        raise IntegrityError(
            f"the database has schema {current_version}, which this version of Hopyard does not know",
            hints=("it was written by a newer version: upgrade with `pip install -U hopyard`",),
        )
    config.attributes["connection"] = conn
    command.upgrade(config, "head")

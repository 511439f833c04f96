"""What a database refers to, read without migrating or changing it: for a backup, which may find one of
another version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from hopyard.domain.ids import Digest, RunId
from hopyard.stores.sql.access import BLOB_COLUMNS, DATABASE_ID_KEY, MANIFEST_COLUMNS
from hopyard.stores.sql.database import open_engines
from hopyard.stores.sql.error_translation import translate_error
from hopyard.stores.sql.tables import runs, secrets


@dataclass(frozen=True, slots=True)
class References:
    """database_id: "" where the database has none yet. manifests, blobs: digests in use.
    runs: all that exist."""

    database_id: str
    manifests: frozenset[Digest]
    blobs: frozenset[Digest]
    runs: frozenset[RunId]


def read_references(url: str | Path) -> References:
    """Of the database at `url`. What its version does not have yet refers to nothing.
    Raises ServerUnavailable, IntegrityError."""
    engines = open_engines(url)
    try:
        with engines[1].connect() as conn:
            return _read(conn)
    except SQLAlchemyError as failed:
        raise translate_error(failed) from failed
    finally:
        for engine in engines:
            engine.dispose()


def _read(conn: Connection) -> References:
    tables = set(inspect(conn).get_table_names())
    there = {(table, column["name"]) for table in tables for column in inspect(conn).get_columns(table)}

    def of(columns: Sequence[Column[Any]]) -> set[str]:
        known = [column for column in columns if (column.table.name, column.name) in there]
        return {
            found
            for column in known
            for found in conn.execute(select(column).where(column.is_not(None)).distinct()).scalars()
        }

    named = select(secrets.c.value).where(secrets.c.name == DATABASE_ID_KEY)
    identity = conn.execute(named).scalar() if secrets.name in tables else None
    return References(
        "" if identity is None else bytes(identity).decode(),
        frozenset(map(Digest, of(MANIFEST_COLUMNS))),
        frozenset(map(Digest, of(BLOB_COLUMNS))),
        frozenset(map(RunId, of([runs.c.id]))),
    )

"""Reads the references of a database without migrating or changing it, for a backup. The database may be of
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
    """The references of a database. database_id: "" if it has none yet. manifests, blobs: digests in use.
    runs: all runs."""

    database_id: str
    manifests: frozenset[Digest]
    blobs: frozenset[Digest]
    runs: frozenset[RunId]


def read_references(url: str | Path) -> References:
    """Reads the references of the database at `url`. Columns that its version lacks have none. Raises
    ServerUnavailable, IntegrityError."""
    engines = open_engines(url)
    try:
        with engines[1].connect() as conn:
            return _read(conn)
    except SQLAlchemyError as error:
        raise translate_error(error) from error
    finally:
        for engine in engines:
            engine.dispose()


def _read(conn: Connection) -> References:
    tables = set(inspect(conn).get_table_names())
    existing = {(table, column["name"]) for table in tables for column in inspect(conn).get_columns(table)}

    def values_in(columns: Sequence[Column[Any]]) -> set[str]:
        present = [column for column in columns if (column.table.name, column.name) in existing]
        return {
            value
            for column in present
            for value in conn.execute(select(column).where(column.is_not(None)).distinct()).scalars()
        }

    query = select(secrets.c.value).where(secrets.c.name == DATABASE_ID_KEY)
    stored_id = conn.execute(query).scalar() if secrets.name in tables else None
    return References(
        "" if stored_id is None else bytes(stored_id).decode(),
        frozenset(map(Digest, values_in(MANIFEST_COLUMNS))),
        frozenset(map(Digest, values_in(BLOB_COLUMNS))),
        frozenset(map(RunId, values_in([runs.c.id]))),
    )

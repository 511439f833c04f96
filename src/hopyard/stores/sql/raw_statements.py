"""Statements that run many times a second, passed to the driver directly.

SQLAlchemy compiles a statement once. But on each execution, it looks the statement up, checks its parameters
and wraps its results. For the short statements of the writing thread, that takes several times as long as the
driver itself, while other threads wait for the interpreter. This module caches the compiled text, and raises
SQLAlchemy's errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import repeat
from operator import itemgetter
from typing import Any

from sqlalchemy import ClauseElement, ColumnElement, Connection, Select, bindparam
from sqlalchemy.exc import DBAPIError

ParameterRow = Mapping[str, Any]
BATCH_SIZES = (1, 4, 16, 64)  # numbers of ids per query: one text is cached for each size


class RawStatement:
    """One statement, whose parameters are named as in SQLAlchemy.

    Values are passed to the driver unchanged: text, numbers, bytes and booleans. Types that SQLAlchemy would
    convert are not supported, nor lists (`in_`), which would change the text (see `RawSelectByIds`).
    """

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        # by dialect and names of the parameters
        self._compiled_cache: dict[tuple[str, ...], tuple[str, Callable[[ParameterRow], Any]]] = {}

    def execute_many(self, conn: Connection, rows: Sequence[ParameterRow]) -> int:
        """Executes the statement for each row of parameters, which all have the same names; returns the
        number of changed rows. Raises DBAPIError."""
        if not rows:
            return 0
        text, to_arguments = self._compiled(conn, rows[0])
        cursor = conn.connection.cursor()
        try:
            cursor.executemany(text, [to_arguments(row) for row in rows])
            return int(cursor.rowcount)
        except conn.dialect.loaded_dbapi.Error as error:
            raise _translate_driver_error(conn, text, error) from error
        finally:
            cursor.close()

    def fetch_all(self, conn: Connection, parameters: ParameterRow | None = None) -> list[Sequence[Any]]:
        """Returns the rows. Raises DBAPIError."""
        text, to_arguments = self._compiled(conn, parameters or {})
        cursor = conn.connection.cursor()
        try:
            cursor.execute(text, to_arguments(parameters or {}))
            return list(cursor.fetchall())
        except conn.dialect.loaded_dbapi.Error as error:
            raise _translate_driver_error(conn, text, error) from error
        finally:
            cursor.close()

    def _compiled(self, conn: Connection, row: ParameterRow) -> tuple[str, Callable[[ParameterRow], Any]]:
        """Returns the text for this database, and a function that converts a row of parameters for the
        driver."""
        key = conn.dialect.name, *row
        statement = self._compiled_cache.get(key)
        if statement is None:
            compiled = self._statement.compile(dialect=conn.dialect, column_keys=list(row))
            constants = {name: value for name, value in compiled.params.items() if name not in row}
            order = list(compiled.positiontup) if compiled.positional else None  # type: ignore[attr-defined]
            statement = self._compiled_cache[key] = str(compiled), _parameter_builder(order, constants)
        return statement


class RawSelectByIds:
    """A query for rows by values of one column, passed to the driver directly."""

    def __init__(self, statement: Select[Any], column: ColumnElement[Any]) -> None:
        self._by_size = {
            size: RawStatement(
                statement.where(
                    column.in_([bindparam(name, type_=column.type) for name in _parameter_names(size)])
                )
            )
            for size in BATCH_SIZES
        }

    def fetch_all(self, conn: Connection, ids: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Yields the rows for any number of ids. Raises DBAPIError."""
        for start in range(0, len(ids), BATCH_SIZES[-1]):
            batch = ids[start : start + BATCH_SIZES[-1]]
            size = next(size for size in BATCH_SIZES if size >= len(batch))
            padded = [*batch, *repeat(batch[-1], size - len(batch))]
            yield from self._by_size[size].fetch_all(
                conn, dict(zip(_parameter_names(size), padded, strict=True))
            )


@cache
def _parameter_names(size: int) -> tuple[str, ...]:
    return tuple(f"b_{number}" for number in range(size))


def _parameter_builder(order: Sequence[str] | None, constants: ParameterRow) -> Callable[[ParameterRow], Any]:
    """Returns a function that converts a row of parameters.

    order: the positions of parameters; None if the driver takes them by name. constants: parameters that the
    statement itself sets.
    """
    if order is None:
        return lambda row: {**row, **constants}
    if not constants and len(order) > 1:
        return itemgetter(*order)
    return lambda row: tuple([constants[name] if name in constants else row[name] for name in order])


def _translate_driver_error(conn: Connection, text: str, error: Exception) -> Exception:
    """Returns the error that SQLAlchemy would raise; invalidates a broken connection."""
    dialect = conn.dialect
    is_disconnected = dialect.is_disconnect(error, conn.connection.dbapi_connection, None)  # type: ignore[arg-type]
    if is_disconnected:
        conn.invalidate(error)
    return DBAPIError.instance(
        text, None, error, dialect.loaded_dbapi.Error, connection_invalidated=is_disconnected, dialect=dialect
    )

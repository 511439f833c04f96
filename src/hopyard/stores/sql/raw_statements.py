"""Statements that run many times a second, given to the driver right away.

SQLAlchemy compiles a statement once, but finds it again, checks its parameters and wraps what comes back each
time it runs: for the short statements of the thread that writes, several times as long as the driver takes,
and beside threads that wait for the interpreter. What it made of the statement is kept here; errors are its
own, so that nobody else has to know.
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
BATCH_SIZES = (1, 4, 16, 64)  # so many ids are asked for at once: of each size one text is kept


class RawStatement:
    """One statement, whose parameters are named as SQLAlchemy's are. Values go to the driver as they are:
    text, numbers, bytes and truth values; no types that SQLAlchemy would convert, and no lists (`in_`), with
    which the text would change (see `RawSelectByIds`)."""

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        # by dialect and the names of parameters
        self._compiled_cache: dict[tuple[str, ...], tuple[str, Callable[[ParameterRow], Any]]] = {}

    def execute_many(self, conn: Connection, rows: Sequence[ParameterRow]) -> int:
        """Run it for each of these parameters, which all have the same names; how many rows it changed.
        Raises DBAPIError."""
        if not rows:
            return 0
        text, given = self._compiled(conn, rows[0])
        cursor = conn.connection.cursor()
        try:
            cursor.executemany(text, [given(row) for row in rows])
            return int(cursor.rowcount)
        except conn.dialect.loaded_dbapi.Error as error:
            raise _translate_driver_error(conn, text, error) from error
        finally:
            cursor.close()

    def fetch_all(self, conn: Connection, parameters: ParameterRow | None = None) -> list[Sequence[Any]]:
        """What it finds. Raises DBAPIError."""
        text, given = self._compiled(conn, parameters or {})
        cursor = conn.connection.cursor()
        try:
            cursor.execute(text, given(parameters or {}))
            return list(cursor.fetchall())
        except conn.dialect.loaded_dbapi.Error as error:
            raise _translate_driver_error(conn, text, error) from error
        finally:
            cursor.close()

    def _compiled(self, conn: Connection, row: ParameterRow) -> tuple[str, Callable[[ParameterRow], Any]]:
        """Its text for this database, and what the driver takes for one set of parameters."""
        key = conn.dialect.name, *row
        found = self._compiled_cache.get(key)
        if found is None:
            compiled = self._statement.compile(dialect=conn.dialect, column_keys=list(row))
            fixed = {name: value for name, value in compiled.params.items() if name not in row}
            order = list(compiled.positiontup) if compiled.positional else None  # type: ignore[attr-defined]
            found = self._compiled_cache[key] = str(compiled), _parameter_builder(order, fixed)
        return found


class RawSelectByIds:
    """A statement that finds rows by some values of one column, given to the driver right away."""

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
        """What it finds of any number of them. Raises DBAPIError."""
        for at in range(0, len(ids), BATCH_SIZES[-1]):
            some = ids[at : at + BATCH_SIZES[-1]]
            size = next(size for size in BATCH_SIZES if size >= len(some))
            filled = [*some, *repeat(some[-1], size - len(some))]
            yield from self._by_size[size].fetch_all(
                conn, dict(zip(_parameter_names(size), filled, strict=True))
            )


@cache
def _parameter_names(size: int) -> tuple[str, ...]:
    return tuple(f"b_{number}" for number in range(size))


def _parameter_builder(order: Sequence[str] | None, constants: ParameterRow) -> Callable[[ParameterRow], Any]:
    """order: of parameters by position; None where the driver takes them by name.
    constants: those that the statement itself gives."""
    if order is None:
        return lambda row: {**row, **constants}
    if not constants and len(order) > 1:
        return itemgetter(*order)
    return lambda row: tuple([constants[name] if name in constants else row[name] for name in order])


def _translate_driver_error(conn: Connection, text: str, error: Exception) -> Exception:
    """As SQLAlchemy would raise it; a connection that broke is given up."""
    dialect = conn.dialect
    lost = dialect.is_disconnect(error, conn.connection.dbapi_connection, None)  # type: ignore[arg-type]
    if lost:
        conn.invalidate(error)
    return DBAPIError.instance(
        text, None, error, dialect.loaded_dbapi.Error, connection_invalidated=lost, dialect=dialect
    )

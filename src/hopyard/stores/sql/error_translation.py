"""Translates errors of a database for the caller."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, StatementError

from hopyard import errors

_CORRUPT_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
# A quota, a limit on file sizes, or a full disk while a mapping grows. SQLite cannot distinguish them from a
# disk fault.
_WRITE_ERROR_CODES = frozenset(
    {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_FSYNC}
)
_PG_DISK_FULL = "53100"  # PostgreSQL's SQLSTATE


_CANNOT_OPEN_HINT = (
    "the server has no descriptors left, or the disk of its home has a fault; check the server's log"
)
_FREE_SPACE_HINTS = (
    "free space on the disk that holds it, or raise the quota; no write was left incomplete",
)


def translate_error(error: BaseException) -> BaseException:
    """Returns the error of `hopyard.errors` for a database error; returns any other error unchanged."""
    if isinstance(error, OverflowError | UnicodeEncodeError):
        return errors.SpecError(f"a value cannot be stored: {error}")
    if isinstance(error, DBAPIError):
        return _translate_driver(error)
    if isinstance(error, StatementError) and isinstance(error.orig, OverflowError | UnicodeEncodeError):
        return errors.SpecError(f"a value cannot be stored: {error.orig}")
    return error


def _translate_driver(error: DBAPIError) -> BaseException:
    message = " ".join(str(error.orig).split())  # PostgreSQL's client returns several lines, with tabs
    code = getattr(error.orig, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_FULL or getattr(error.orig, "sqlstate", None) == _PG_DISK_FULL:
        return errors.StorageFull(f"the database has no space left: {message}", hints=_FREE_SPACE_HINTS)
    if code in _WRITE_ERROR_CODES:
        return errors.StorageFull(
            f"the database cannot be written: {message}",
            hints=(*_FREE_SPACE_HINTS, "or check whether the disk is faulty"),
        )
    if code & 0xFF == sqlite3.SQLITE_CANTOPEN:  # no transaction was started
        return errors.ServerUnavailable(
            f"the database cannot be opened: {message}", hints=(_CANNOT_OPEN_HINT,), retry_after_s=1.0
        )
    if code & 0xFF in _CORRUPT_CODES:
        return errors.IntegrityError(
            f"the database is damaged: {message}", hints=("move it aside and restore a copy of it",)
        )
    if isinstance(error, DataError):
        return errors.SpecError(f"a value cannot be stored: {message}")
    if isinstance(error, IntegrityError | ProgrammingError) or code == sqlite3.SQLITE_ERROR:
        return error  # a bug in this package: keep the traceback
    return errors.ServerUnavailable(f"the database did not answer: {message}")

"""What a database's error means to a caller."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, StatementError

from hopyard import errors

_CORRUPT_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
# A quota, a limit on a file's size, or a full disk that is met while a mapping grows; SQLite cannot tell them
# from a fault.
_WRITE_ERROR_CODES = frozenset(
    {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_FSYNC}
)
_PG_DISK_FULL = "53100"  # PostgreSQL's state


_CANNOT_OPEN_HINT = (
    "the server has no descriptors left, or the disk of its home is in trouble; its log says more"
)
_FREE_SPACE_HINTS = ("free space on the disk that holds it, or raise the quota; nothing was half-written",)


def translate_error(error: BaseException) -> BaseException:
    """The error of ours that says it; anything that is no database's error is returned as it is."""
    if isinstance(error, OverflowError | UnicodeEncodeError):
        return errors.SpecError(f"a value cannot be stored: {error}")
    if isinstance(error, DBAPIError):
        return _translate_driver(error)
    if isinstance(error, StatementError) and isinstance(error.orig, OverflowError | UnicodeEncodeError):
        return errors.SpecError(f"a value cannot be stored: {error.orig}")
    return error


def _translate_driver(error: DBAPIError) -> BaseException:
    said = " ".join(str(error.orig).split())  # PostgreSQL's client writes several lines, with tabs
    code = getattr(error.orig, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_FULL or getattr(error.orig, "sqlstate", None) == _PG_DISK_FULL:
        return errors.StorageFull(f"the database has no space left: {said}", hints=_FREE_SPACE_HINTS)
    if code in _WRITE_ERROR_CODES:
        return errors.StorageFull(
            f"the database cannot be written: {said}",
            hints=(*_FREE_SPACE_HINTS, "or see whether the disk fails"),
        )
    if code & 0xFF == sqlite3.SQLITE_CANTOPEN:  # nothing was begun
        return errors.ServerUnavailable(
            f"the database cannot be opened: {said}", hints=(_CANNOT_OPEN_HINT,), retry_after_s=1.0
        )
    if code & 0xFF in _CORRUPT_CODES:
        return errors.IntegrityError(
            f"the database is damaged: {said}", hints=("move it aside and restore a copy of it",)
        )
    if isinstance(error, DataError):
        return errors.SpecError(f"a value cannot be stored: {said}")
    if isinstance(error, IntegrityError | ProgrammingError) or code == sqlite3.SQLITE_ERROR:
        return error  # a fault of this package, not of the world: let the trace show it
    return errors.ServerUnavailable(f"the database did not answer: {said}")

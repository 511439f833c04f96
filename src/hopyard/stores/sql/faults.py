"""What a database's error means to a caller."""

from __future__ import annotations

import errno
import sqlite3

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, ProgrammingError, StatementError

from hopyard import errors

# PostgreSQL: disk_full, and out_of_memory's sibling for a write-ahead log that has no room.
_FULL_STATES = frozenset({"53100"})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
# What a full disk, a quota or a limit on a file's size looks like when it is met inside a write or a mapping.
_FULL = frozenset({sqlite3.SQLITE_FULL})
_FULL_WHEN_NO_SPACE = frozenset({sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE})


def translate(error: BaseException) -> BaseException:
    """The error of ours that says it; anything that is no database's error is returned as it is."""
    if isinstance(error, OverflowError | UnicodeEncodeError):
        return errors.SpecError(f"a value cannot be stored: {error}")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return _full(str(error))
    if isinstance(error, DBAPIError):
        return _translate_driver(error)
    if isinstance(error, StatementError) and isinstance(error.orig, OverflowError | UnicodeEncodeError):
        return errors.SpecError(f"a value cannot be stored: {error.orig}")
    return error


def _translate_driver(error: DBAPIError) -> BaseException:
    said = str(error.orig).strip()
    if is_full(error):
        return _full(said)
    if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
        return errors.IntegrityError(
            f"the database is damaged: {said}", hints=("move it aside and restore a copy; `hop doctor` names the file",)
        )
    if isinstance(error, DataError):
        return errors.SpecError(f"a value cannot be stored: {said}")
    if isinstance(error, IntegrityError | ProgrammingError):
        return error  # a fault of this package, not of the world: let the trace show it
    return errors.ServerUnavailable(f"the database did not answer: {said}")


def is_full(error: DBAPIError) -> bool:
    code = getattr(error.orig, "sqlite_errorcode", 0)
    return code in _FULL or code in _FULL_WHEN_NO_SPACE or getattr(error.orig, "sqlstate", None) in _FULL_STATES


def _full(said: str) -> errors.StorageFull:
    return errors.StorageFull(
        f"the database has no space left: {said}", hints=("free space on the disk that holds it; nothing was half-written",)
    )


def spoils_transaction(error: BaseException) -> bool:
    """Whether the transaction cannot be trusted after it: SQLite may have rolled all of it back, or the link is gone."""
    if isinstance(error, IntegrityError | DataError | ProgrammingError):
        return False
    return isinstance(error, DBAPIError | InterfaceError)

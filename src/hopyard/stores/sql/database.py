"""One database: its connections, one writer with group commit, and a few readers."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from hopyard.errors import HopyardError, ServerUnavailable, SpecError, StorageFull
from hopyard.private_files import make_folder, open_file
from hopyard.stores.sql.change_log import ChangeLog
from hopyard.stores.sql.error_translation import translate_error
from hopyard.stores.sql.group_commit import Batch, GroupCommitWriter, Write, run_each
from hopyard.stores.sql.raw_statements import RawStatement
from hopyard.stores.sql.schema import upgrade_to_head

T = TypeVar("T")
A = TypeVar("A")

READER_COUNT = 3
BUSY_TIMEOUT_MS = 10_000
_WARM_TIMEOUT_S = 5.0
# PostgreSQL has no lock on the whole database as SQLite has, so every writing transaction takes this one: a
# write then looks and decides without anything moving under it, also when several servers share the database.
ADVISORY_LOCK = 0x686F70  # "hop"
_BEGIN_WRITING, _BEGIN_READING = RawStatement(text("BEGIN IMMEDIATE")), RawStatement(text("BEGIN"))
_NO_BUSY_TIMEOUT = RawStatement(text("PRAGMA busy_timeout=0"))


class JoinedWrite(Generic[T]):
    """A write that shares the transaction of the next one of its task.
    outcome: what it returned, once both are durable."""

    def __init__(self, write: Write[T]) -> None:
        self.write, self.is_pending = write, True
        self.outcome: T | None = None


_JOINED_WRITE: ContextVar[JoinedWrite[Any] | None] = ContextVar("joined write", default=None)


class Database:
    """Connections to one SQLite file or one PostgreSQL database whose schema is the newest.

    Writes of any number of callers are grouped into few commits; reads go on beside them, each on one
    consistent state. change_log: what was written lately, for those who keep a picture of it.
    """

    def __init__(
        self, engine: Engine, read_engine: Engine, *, release_space: Callable[[], bool] = lambda: False
    ) -> None:
        self._engine = engine
        self._read_engine = read_engine
        self._writer = GroupCommitWriter(engine, release_space=release_space)
        self.change_log = ChangeLog()
        self.on_undo(self.change_log.on_undone)
        self.on_commit(self.change_log.on_committed)
        self.on_lost(self.change_log.clear)
        self._thread_local = threading.local()
        self._open_connections: list[Connection] = []
        self._reader_pool = ThreadPoolExecutor(READER_COUNT, thread_name_prefix="hopyard-sql-reader")
        self._closed = False

    @classmethod
    def open(cls, url: str | Path, *, release_space: Callable[[], bool] = lambda: False) -> Database:
        """Open, create or migrate the database at `url`: `sqlite:///PATH`, `postgresql://…`, or the path of a
        SQLite file.

        release_space: gives up some reserved space on the disk of a SQLite file; whether there was any.
        Raises SpecError for an address of no known kind, ServerUnavailable when it does not answer,
        IntegrityError when it is damaged or of a newer Hopyard, StorageFull.
        """
        engine, read_engine = open_engines(url)
        while True:
            try:
                upgrade_to_head(engine)
                return cls(engine, read_engine, release_space=release_space)
            except Exception as error:
                engine.dispose()
                told = translate_error(error)
                if isinstance(told, StorageFull) and release_space():
                    continue
                if told is error:
                    raise
                raise told from error

    def open_readers(self) -> None:
        """Open the connections of all readers now: later there may be no descriptors for them.
        Raises nothing: what fails is tried again when it is used."""
        together = threading.Barrier(READER_COUNT, timeout=_WARM_TIMEOUT_S)

        def open_one() -> None:
            with suppress(DBAPIError, threading.BrokenBarrierError):
                together.wait()  # so that each thread opens its own
                self._connection()

        for opening in [self._reader_pool.submit(open_one) for _ in range(READER_COUNT)]:
            opening.result()

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    @property
    def transaction(self) -> int:
        """The number of the writing transaction that is under way. Only for what runs inside of it."""
        return self._writer.transaction

    def on_undo(self, listener: Callable[[int], None]) -> None:
        """Call `listener(transaction)`, on the writing thread, whenever something that was written in this
        transaction is undone, or may be."""
        self._writer.undo_listeners.append(listener)

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Call `listener()`, on the writing thread, whenever a writing transaction is stored, before those
        who wait for it are told."""
        self._writer.commit_listeners.append(listener)

    def on_lost(self, listener: Callable[[], None]) -> None:
        """Call `listener()`, on any thread, whenever a connection was lost or given up."""
        self._writer.lost_listeners.append(listener)

    @contextmanager
    def join_next_write(self, write: Write[T]) -> Iterator[JoinedWrite[T]]:
        """Within the block, `write(connection)` is run in the transaction of the first `write` of this task:
        both become durable, or neither. It is not run where that one fails, or where there is none."""
        joined = JoinedWrite(write)
        before = _JOINED_WRITE.set(joined)
        try:
            yield joined
        finally:
            joined.is_pending = False  # tasks that were started within the block may go on
            _JOINED_WRITE.reset(before)

    async def write(self, write: Write[T], *, vital: bool = False, joinable: bool = True) -> T:
        """Run `write(connection)` in a transaction; returns once it is durable.

        It may be run a second time after a failure, so it must have no other effects than those on the
        connection. What it raises undoes it and comes to the caller. vital: something that must be possible
        on a full disk (an end, a removal, the lease): it may use the disk space that is reserved. joinable:
        False for a write that only keeps accounts, which no `joining` is meant for. Raises StorageFull,
        ServerUnavailable.
        """
        joined = _JOINED_WRITE.get() if joinable else None
        if joined is None or not joined.is_pending:
            outcome: T = await self._writer.submit(run_each, write, vital=vital)
            return outcome

        def both(conn: Connection) -> tuple[T, Any]:
            return write(conn), joined.write(conn)

        joined.is_pending = False
        try:
            outcome, joined.outcome = await self._writer.submit(run_each, both, vital=vital)
        except Exception:  # nothing is stored
            joined.is_pending = True
            raise
        return outcome

    async def write_together(self, batch: Batch[A, T], argument: A, *, vital: bool = False) -> T:
        """As `write`, for many small writes of one kind: calls that wait at the same moment are given to
        `batch` as one.

        `batch(connection, arguments)` returns a result for each argument, or an exception for one that wrote
        nothing. When it raises, each argument is tried by itself.
        """
        outcome: T = await self._writer.submit(batch, argument, vital=vital)
        return outcome

    async def read(self, read: Callable[[Connection], T]) -> T:
        """Run `read(connection)` on one consistent state of the database. Raises ServerUnavailable."""
        if self._closed:
            raise ServerUnavailable("the database is closed")
        return await asyncio.get_running_loop().run_in_executor(self._reader_pool, self._read, read)

    def read_nowait(self, read: Callable[[Connection], T]) -> T | None:
        """What `read(connection)` finds with one `RawStatement` statement that needs a page or two, here and
        now: another thread would be asked in many times as long, and compete with whatever else this one
        does. None where `read` has to be asked: it is a database behind a network, or it is locked, broken or
        closed."""
        if self.dialect != "sqlite" or self._closed:
            return None
        try:
            connection: Connection | None = getattr(self._thread_local, "at_once", None)
            if connection is None:
                connection = self._thread_local.at_once = self._read_engine.connect()
                self._open_connections.append(connection)
                _NO_BUSY_TIMEOUT.fetch_all(connection)
            return read(connection)
        except DBAPIError:
            self._thread_local.at_once = None
            return None

    async def close(self) -> None:
        """Finish the writes that are queued and let go of all connections. Idempotent."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._reader_pool.shutdown()
        for connection in self._open_connections:
            connection.close()
        self._open_connections.clear()
        self._writer.close()  # last: the last connection to a SQLite file folds its log into it
        self._engine.dispose()
        self._read_engine.dispose()

    def _read(self, read: Callable[[Connection], T]) -> T:
        try:
            try:
                return self._read_once(read)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                self._writer.notify_lost()
                return self._read_once(read)  # the link had gone while it was idle
        except HopyardError:
            raise
        except Exception as error:
            told = translate_error(error)
            if told is error:
                raise
            raise told from error

    def _read_once(self, read: Callable[[Connection], T]) -> T:
        connection = self._connection()
        with connection.begin():
            return read(connection)

    def _connection(self) -> Connection:
        """Of this thread."""
        connection: Connection | None = getattr(self._thread_local, "connection", None)
        if connection is None:
            connection = self._thread_local.connection = self._read_engine.connect()
            self._open_connections.append(connection)
        return connection


def _to_url(url: str | Path) -> URL:
    if isinstance(url, Path):
        return URL.create("sqlite", database=str(url))
    try:
        address = make_url(url)
    except ArgumentError as error:
        raise SpecError(
            f"database: `{url}` is not an address",
            hints=("write sqlite:///PATH or postgresql://USER@HOST/NAME",),
        ) from error
    if address.get_backend_name() == "sqlite":
        if not address.database or address.database == ":memory:":
            raise SpecError(
                "database: a SQLite database is a file", hints=("write sqlite:////absolute/path",)
            )
        return address.set(drivername="sqlite")
    if address.get_backend_name() in ("postgresql", "postgres"):
        return address.set(drivername="postgresql+psycopg")
    raise SpecError(
        f"database: `{address.get_backend_name()}` is not known",
        hints=("write sqlite:///PATH or postgresql://USER@HOST/NAME",),
    )


def open_engines(url: str | Path) -> tuple[Engine, Engine]:
    """One that writes and one that reads, for `url` as in `Database.open`. Raises SpecError."""
    address = _to_url(url)
    return (
        _sqlite_engines(address) if address.get_backend_name() == "sqlite" else _postgresql_engines(address)
    )


def _sqlite_engines(address: URL) -> tuple[Engine, Engine]:
    file = Path(address.database or "")
    make_folder(file.parent)
    # SQLite would make it as the umask says, and its log alike; a failure shows again when it is opened
    with suppress(OSError):
        os.close(open_file(file, os.O_RDONLY | os.O_CREAT))
    options: dict[str, Any] = {
        "poolclass": NullPool,
        "connect_args": {"check_same_thread": False, "isolation_level": None},
    }
    engine = create_engine(address, **options)
    read_engine = create_engine(address, **options)

    @event.listens_for(engine, "connect")
    def _writing(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute(f"PRAGMA journal_size_limit={64 * 1024 * 1024}")

    @event.listens_for(read_engine, "connect")
    def _reading(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA query_only=ON")

    # The driver begins a transaction too late (not before a read) and too weakly for a write that looks
    # first.
    event.listen(engine, "begin", _BEGIN_WRITING.fetch_all)
    event.listen(read_engine, "begin", _BEGIN_READING.fetch_all)
    return engine, read_engine


def _postgresql_engines(address: URL) -> tuple[Engine, Engine]:
    options: dict[str, Any] = {
        "poolclass": NullPool,
        "connect_args": {"connect_timeout": 10, "application_name": "hopyard"},
    }
    try:
        engine = create_engine(address, isolation_level="READ COMMITTED", **options)
        read_engine = create_engine(
            address,
            isolation_level="REPEATABLE READ",
            execution_options={"postgresql_readonly": True},
            **options,
        )
    except ModuleNotFoundError as error:
        raise SpecError(
            "PostgreSQL needs the driver psycopg", hints=("pip install 'hopyard[postgres]'",)
        ) from error
    event.listen(
        engine,
        "begin",
        lambda connection: connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"),
    )
    return engine, read_engine

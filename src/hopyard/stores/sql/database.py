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
# PostgreSQL has no lock on the whole database as SQLite has, so every writing transaction takes this lock. A
# write can then check and decide without concurrent changes, also when several servers share the database.
ADVISORY_LOCK = 0x686F70  # "hop"
_BEGIN_WRITING, _BEGIN_READING = RawStatement(text("BEGIN IMMEDIATE")), RawStatement(text("BEGIN"))
_NO_BUSY_TIMEOUT = RawStatement(text("PRAGMA busy_timeout=0"))


class JoinedWrite(Generic[T]):
    """A write that shares the transaction of the next write of its task. outcome: its result, once both are
    durable."""

    def __init__(self, write: Write[T]) -> None:
        self.write, self.is_pending = write, True
        self.outcome: T | None = None


_JOINED_WRITE: ContextVar[JoinedWrite[Any] | None] = ContextVar("joined write", default=None)


class Database:
    """Connections to one SQLite file or one PostgreSQL database with the newest schema.

    Writes of any number of callers are grouped into few commits. Reads run concurrently, each on one
    consistent state. change_log: the recent writes, for readers with a cache.
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
        """Opens, creates or migrates the database at `url`: `sqlite:///PATH`, `postgresql://…`, or the path
        of a SQLite file.

        release_space: releases some reserved space on the disk of a SQLite file, and returns whether there
        was any. Raises SpecError for an unknown kind of address, ServerUnavailable if the database does not
        answer, IntegrityError if it is damaged or of a newer Hopyard, StorageFull.
        """
        engine, read_engine = open_engines(url)
        while True:
            try:
                upgrade_to_head(engine)
                return cls(engine, read_engine, release_space=release_space)
            except Exception as error:
                engine.dispose()
                translated = translate_error(error)
                if isinstance(translated, StorageFull) and release_space():
                    continue
                if translated is error:
                    raise
                raise translated from error

    def open_readers(self) -> None:
        """Opens the connections of all readers now, because later the process may run out of descriptors.
        Raises nothing: failed connections are opened again on use."""
        barrier = threading.Barrier(READER_COUNT, timeout=_WARM_TIMEOUT_S)

        def connect() -> None:
            with suppress(DBAPIError, threading.BrokenBarrierError):
                barrier.wait()  # so that each thread opens its own connection
                self._connection()

        for future in [self._reader_pool.submit(connect) for _ in range(READER_COUNT)]:
            future.result()

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    @property
    def transaction(self) -> int:
        """The number of the current writing transaction. Only valid inside of it."""
        return self._writer.transaction

    def on_undo(self, listener: Callable[[int], None]) -> None:
        """Calls `listener(transaction)` on the writing thread whenever a part of this transaction is or may
        be undone."""
        self._writer.undo_listeners.append(listener)

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` on the writing thread whenever a transaction is committed, before its callers
        get their results."""
        self._writer.commit_listeners.append(listener)

    def on_lost(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` on any thread whenever a connection was lost or closed."""
        self._writer.lost_listeners.append(listener)

    @contextmanager
    def join_next_write(self, write: Write[T]) -> Iterator[JoinedWrite[T]]:
        """Runs `write(connection)` in the transaction of the first `write` of this task within the block.

        Both become durable, or neither. It does not run if that write fails, or if there is none.
        """
        joined = JoinedWrite(write)
        token = _JOINED_WRITE.set(joined)
        try:
            yield joined
        finally:
            joined.is_pending = False  # tasks that were started within the block may continue
            _JOINED_WRITE.reset(token)

    async def write(self, write: Write[T], *, vital: bool = False, joinable: bool = True) -> T:
        """Runs `write(connection)` in a transaction; returns its result once it is durable.

        It may run a second time after a failure, so it must have no effects except on the connection. Its
        errors undo the write and are raised to the caller. vital: a write that must be possible on a full
        disk (an end, a removal, the lease): it may use the reserved disk space. joinable: False for
        bookkeeping writes, which `join_next_write` does not mean. Raises StorageFull, ServerUnavailable.
        """
        joined = _JOINED_WRITE.get() if joinable else None
        if joined is None or not joined.is_pending:
            outcome: T = await self._writer.submit(run_each, write, vital=vital)
            return outcome

        def write_both(conn: Connection) -> tuple[T, Any]:
            return write(conn), joined.write(conn)

        joined.is_pending = False
        try:
            outcome, joined.outcome = await self._writer.submit(run_each, write_both, vital=vital)
        except Exception:  # nothing is stored
            joined.is_pending = True
            raise
        return outcome

    async def write_together(self, batch: Batch[A, T], argument: A, *, vital: bool = False) -> T:
        """Works like `write` for many small writes of one kind: concurrent calls are passed to `batch`
        together.

        `batch(connection, arguments)` returns a result for each argument, or an exception for one that wrote
        nothing. If it raises, each argument is retried separately.
        """
        outcome: T = await self._writer.submit(batch, argument, vital=vital)
        return outcome

    async def read(self, read: Callable[[Connection], T]) -> T:
        """Runs `read(connection)` on one consistent state of the database. Raises ServerUnavailable."""
        if self._closed:
            raise ServerUnavailable("the database is closed")
        return await asyncio.get_running_loop().run_in_executor(self._reader_pool, self._read, read)

    def read_nowait(self, read: Callable[[Connection], T]) -> T | None:
        """Returns the result of `read(connection)`, or None if it needs another thread.

        For one `RawStatement` that reads a page or two in the calling thread. Another thread would take many
        times as long, and compete with the calling thread. None: the database is behind a network, or it is
        locked, broken or closed.
        """
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
        """Finishes the queued writes and closes all connections. Idempotent."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._reader_pool.shutdown()
        for connection in self._open_connections:
            connection.close()
        self._open_connections.clear()
        self._writer.close()  # last: the last connection to a SQLite file merges its log into it
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
                return self._read_once(read)  # the connection had broken while it was idle
        except HopyardError:
            raise
        except Exception as error:
            translated = translate_error(error)
            if translated is error:
                raise
            raise translated from error

    def _read_once(self, read: Callable[[Connection], T]) -> T:
        connection = self._connection()
        with connection.begin():
            return read(connection)

    def _connection(self) -> Connection:
        """Returns the connection of this thread."""
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
                "database: a SQLite database must be a file", hints=("write sqlite:////absolute/path",)
            )
        return address.set(drivername="sqlite")
    if address.get_backend_name() in ("postgresql", "postgres"):
        return address.set(drivername="postgresql+psycopg")
    raise SpecError(
        f"database: unknown kind `{address.get_backend_name()}`",
        hints=("write sqlite:///PATH or postgresql://USER@HOST/NAME",),
    )


def open_engines(url: str | Path) -> tuple[Engine, Engine]:
    """Returns a writing and a reading engine for `url` as in `Database.open`. Raises SpecError."""
    address = _to_url(url)
    return (
        _sqlite_engines(address) if address.get_backend_name() == "sqlite" else _postgresql_engines(address)
    )


def _sqlite_engines(address: URL) -> tuple[Engine, Engine]:
    file = Path(address.database or "")
    make_folder(file.parent)
    # SQLite would create it, and its log, according to the umask. A failure appears again when it is opened.
    with suppress(OSError):
        os.close(open_file(file, os.O_RDONLY | os.O_CREAT))
    options: dict[str, Any] = {
        "poolclass": NullPool,
        "connect_args": {"check_same_thread": False, "isolation_level": None},
    }
    engine = create_engine(address, **options)
    read_engine = create_engine(address, **options)

    @event.listens_for(engine, "connect")
    def _configure_writer(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute(f"PRAGMA journal_size_limit={64 * 1024 * 1024}")

    @event.listens_for(read_engine, "connect")
    def _configure_reader(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA query_only=ON")

    # The driver starts a transaction too late (not before a read), and too weakly for a write that reads
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

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
from hopyard.stores.sql.faults import translate
from hopyard.stores.sql.hot import Hot
from hopyard.stores.sql.journal import Journal
from hopyard.stores.sql.schema import bring_to_head
from hopyard.stores.sql.writer import Batch, Write, Writer, run_each

T = TypeVar("T")
A = TypeVar("A")

READERS = 3
BUSY_TIMEOUT_MS = 10_000
_WARM_S = 5.0
# PostgreSQL has no lock on the whole database as SQLite has, so every writing transaction takes this one: a
# write then looks and decides without anything moving under it, also when several servers share the database.
ADVISORY_LOCK = 0x686F70  # "hop"
_BEGIN_WRITING, _BEGIN_READING = Hot(text("BEGIN IMMEDIATE")), Hot(text("BEGIN"))
_NEVER_WAIT = Hot(text("PRAGMA busy_timeout=0"))


class JoinedWrite(Generic[T]):
    """A write that shares the transaction of the next one of its task.
    outcome: what it returned, once both are durable."""

    def __init__(self, write: Write[T]) -> None:
        self.write, self.open = write, True
        self.outcome: T | None = None


_JOINED: ContextVar[JoinedWrite[Any] | None] = ContextVar("joined write", default=None)


class Database:
    """Connections to one SQLite file or one PostgreSQL database whose schema is the newest.

    Writes of any number of callers are grouped into few commits; reads go on beside them, each on one
    consistent state. journal: what was written lately, for those who keep a picture of it.
    """

    def __init__(
        self, engine: Engine, read_engine: Engine, *, make_room: Callable[[], bool] = lambda: False
    ) -> None:
        self._engine = engine
        self._read_engine = read_engine
        self._writer = Writer(engine, make_room=make_room)
        self.journal = Journal()
        self.on_undo(self.journal.undone)
        self.on_commit(self.journal.committed)
        self.on_lost(self.journal.forget)
        self._local = threading.local()
        self._opened: list[Connection] = []
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="hopyard-sql-reader")
        self._closed = False

    @classmethod
    def open(cls, url: str | Path, *, make_room: Callable[[], bool] = lambda: False) -> Database:
        """Open, create or migrate the database at `url`: `sqlite:///PATH`, `postgresql://…`, or the path of a
        SQLite file.

        make_room: gives up some reserved space on the disk of a SQLite file; whether there was any. Raises
        SpecError for an address of no known kind, ServerUnavailable when it does not answer, IntegrityError
        when it is damaged or of a newer Hopyard, StorageFull.
        """
        engine, read_engine = open_engines(url)
        while True:
            try:
                bring_to_head(engine)
                return cls(engine, read_engine, make_room=make_room)
            except Exception as error:
                engine.dispose()
                told = translate(error)
                if isinstance(told, StorageFull) and make_room():
                    continue
                if told is error:
                    raise
                raise told from error

    def warm(self) -> None:
        """Open the connections of all readers now: later there may be no descriptors for them.
        Raises nothing: what fails is tried again when it is used."""
        together = threading.Barrier(READERS, timeout=_WARM_S)

        def open_one() -> None:
            with suppress(DBAPIError, threading.BrokenBarrierError):
                together.wait()  # so that each thread opens its own
                self._connection()

        for opening in [self._readers.submit(open_one) for _ in range(READERS)]:
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
    def joining(self, write: Write[T]) -> Iterator[JoinedWrite[T]]:
        """Within the block, `write(connection)` is run in the transaction of the first `write` of this task:
        both become durable, or neither. It is not run where that one fails, or where there is none."""
        joined = JoinedWrite(write)
        before = _JOINED.set(joined)
        try:
            yield joined
        finally:
            joined.open = False  # tasks that were started within the block may go on
            _JOINED.reset(before)

    async def write(self, write: Write[T], *, vital: bool = False, joins: bool = True) -> T:
        """Run `write(connection)` in a transaction; returns once it is durable.

        It may be run a second time after a failure, so it must have no other effects than those on the
        connection. What it raises undoes it and comes to the caller. vital: something that must be possible
        on a full disk (an end, a removal, the lease): it may use the disk space that is reserved. joins:
        False for a write that only keeps accounts, which no `joining` is meant for. Raises StorageFull,
        ServerUnavailable.
        """
        joined = _JOINED.get() if joins else None
        if joined is None or not joined.open:
            outcome: T = await self._writer.submit(run_each, write, vital=vital)
            return outcome

        def both(conn: Connection) -> tuple[T, Any]:
            return write(conn), joined.write(conn)

        joined.open = False
        try:
            outcome, joined.outcome = await self._writer.submit(run_each, both, vital=vital)
        except Exception:  # nothing is stored
            joined.open = True
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
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, read)

    def at_once(self, read: Callable[[Connection], T]) -> T | None:
        """What `read(connection)` finds with one `Hot` statement that needs a page or two, here and now:
        another thread would be asked in many times as long, and compete with whatever else this one does.
        None where `read` has to be asked: it is a database behind a network, or it is locked, broken or
        closed."""
        if self.dialect != "sqlite" or self._closed:
            return None
        try:
            connection: Connection | None = getattr(self._local, "at_once", None)
            if connection is None:
                connection = self._local.at_once = self._read_engine.connect()
                self._opened.append(connection)
                _NEVER_WAIT.rows(connection)
            return read(connection)
        except DBAPIError:
            self._local.at_once = None
            return None

    async def close(self) -> None:
        """Finish the writes that are queued and let go of all connections. Idempotent."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._readers.shutdown()
        for connection in self._opened:
            connection.close()
        self._opened.clear()
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
                self._writer.tell_lost()
                return self._read_once(read)  # the link had gone while it was idle
        except HopyardError:
            raise
        except Exception as error:
            told = translate(error)
            if told is error:
                raise
            raise told from error

    def _read_once(self, read: Callable[[Connection], T]) -> T:
        connection = self._connection()
        with connection.begin():
            return read(connection)

    def _connection(self) -> Connection:
        """Of this thread."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._read_engine.connect()
            self._opened.append(connection)
        return connection


def _address(url: str | Path) -> URL:
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
    address = _address(url)
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
    event.listen(engine, "begin", _BEGIN_WRITING.rows)
    event.listen(read_engine, "begin", _BEGIN_READING.rows)
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

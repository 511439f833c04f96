"""The single writing thread, and its group commit.

All writes that are queued when a commit begins share it, and so a single wait for the disk. Each write has
its own savepoint, so a failed write does not affect the others. A write may run twice (if the shared
transaction fails, each is retried separately), so it must have no effect outside the database.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, NestedTransaction
from sqlalchemy.exc import DBAPIError

from hopyard.errors import ServerUnavailable, StorageFull
from hopyard.stores.sql.error_translation import translate_error

logger = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVar("A")

Write = Callable[[Connection], T]
# Takes the arguments of several calls and returns a result for each. An exception in place of a result is
# raised to that caller only, and must have written nothing.
Batch = Callable[[Connection, Sequence[A]], Sequence["T | Exception"]]

MAX_WRITES_PER_COMMIT = 1024


@dataclass(slots=True)
class WriteFailed:
    error: BaseException


Outcome = Any  # the result of the write, or WriteFailed


class _CommitOutcomeUnknown(Exception):
    """The connection broke during the commit: it may have happened."""


class _TransactionLost(Exception):
    """The shared transaction cannot continue: SQLite rolled it back, or the connection is lost."""


@dataclass(slots=True, eq=False)
class _QueuedWrite:
    batch: Batch[Any, Any]
    argument: Any
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    vital: bool = False


def run_each(conn: Connection, writes: Sequence[Write[Any]]) -> Sequence[Any]:
    """The batch of plain writes; always a single one, see `_group_by_batch`."""
    return [write(conn) for write in writes]


class GroupCommitWriter:
    """Runs writes on a thread of its own, over one connection that is opened again when it is lost.

    release_space: releases some reserved disk space for a vital write; returns False when none is left.
    """

    def __init__(self, engine: Engine, *, release_space: Callable[[], bool] = lambda: False) -> None:
        self._engine, self._release_space = engine, release_space
        self._connection: Connection | None = None
        self.transaction = 0  # of the current or last transaction
        # called on the writing thread when part of it is undone
        self.undo_listeners: list[Callable[[int], None]] = []
        # called on the writing thread when it is committed; must not fail
        self.commit_listeners: list[Callable[[], None]] = []
        # called on any thread when a connection was closed
        self.lost_listeners: list[Callable[[], None]] = []
        self._queue: deque[_QueuedWrite] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="hopyard-sql-writer", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch[A, T], argument: A, *, vital: bool = False) -> asyncio.Future[T]:
        """Queues a write; the future is done when it is durable. Must be called from an event loop.

        vital: may use the reserved disk space.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._wake:
            if self._closed:
                raise ServerUnavailable("the database is closed")
            self._queue.append(_QueuedWrite(batch, argument, loop, future, vital))
            self._wake.notify()
        return future

    def close(self) -> None:
        """Finishes the queued writes and ends the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while items := self._dequeue_writes():
            try:
                outcomes = [
                    self._retry_with_space(item, outcome)
                    for item, outcome in zip(items, self._run_together(items), strict=True)
                ]
            except BaseException as error:  # the thread survives any error, and every caller gets a result
                logger.exception("a group commit failed")
                outcomes = [WriteFailed(error)] * len(items)
            _resolve(items, outcomes)
        self._close_connection()

    def _dequeue_writes(self) -> list[_QueuedWrite]:
        """Returns the waiting writes in order; empty exactly when the writer is closed and none waits."""
        with self._wake:
            while not self._queue and not self._closed:
                self._wake.wait()
            return [self._queue.popleft() for _ in range(min(len(self._queue), MAX_WRITES_PER_COMMIT))]

    def _run_together(self, items: list[_QueuedWrite]) -> list[Outcome]:
        if len(items) > 1:
            try:
                outcomes = self._commit(_group_by_batch(items))
                return [outcomes[item] for item in items]
            except _CommitOutcomeUnknown as error:
                return [_unknown_outcome(error)] * len(items)
            except Exception:
                self._close_broken()  # nothing is stored: each write runs separately to find the failing one
        return [self._run_alone(item) for item in items]

    def _retry_with_space(self, item: _QueuedWrite, outcome: Outcome) -> Outcome:
        """Retries a vital write that found no space while space can be released."""
        while (
            item.vital
            and isinstance(outcome, WriteFailed)
            and isinstance(outcome.error, StorageFull)
            and self._release_space()
        ):
            outcome = self._run_alone(item)
        return outcome

    def _run_alone(self, item: _QueuedWrite, *, retry: bool = True) -> Outcome:
        try:
            return self._commit([[item]])[item]
        except _CommitOutcomeUnknown as error:
            return _unknown_outcome(error)
        except Exception as error:
            self._close_broken()
            if retry and isinstance(error, DBAPIError) and error.connection_invalidated:
                return self._run_alone(item, retry=False)  # the connection had broken while it was idle
            return WriteFailed(translate_error(error))

    def _commit(self, groups: list[list[_QueuedWrite]]) -> dict[_QueuedWrite, Outcome]:
        """Runs the groups in one transaction. Raises if nothing was stored."""
        conn = self._open()
        outcomes: dict[_QueuedWrite, Outcome] = {}
        # a single write needs no savepoint
        run = self._run_in_savepoint if len(groups) > 1 or len(groups[0]) > 1 else _run_batch
        self.transaction += 1
        transaction = conn.begin()
        try:
            for group in groups:
                outcomes |= run(conn, group)
        except BaseException:
            self._notify_undone()
            transaction.rollback()
            raise
        try:
            transaction.commit()
        except BaseException as error:
            self._notify_undone()
            if isinstance(error, DBAPIError) and error.connection_invalidated:
                raise _CommitOutcomeUnknown(str(error)) from error
            transaction.rollback()
            raise
        for listener in self.commit_listeners:
            listener()
        return outcomes

    def _run_in_savepoint(self, conn: Connection, group: list[_QueuedWrite]) -> dict[_QueuedWrite, Outcome]:
        """Runs one group; a failure leaves the transaction as it was before. Raises _TransactionLost if that
        fails."""
        savepoint = conn.begin_nested()
        try:
            outcomes = _run_batch(conn, group)
            savepoint.commit()
            return outcomes
        except Exception as error:
            self._notify_undone()
            _roll_back_to(conn, savepoint, error)
            if len(group) == 1:
                return {group[0]: WriteFailed(translate_error(error))}
        return {item: outcome for item in group for outcome in self._run_in_savepoint(conn, [item]).values()}

    def _notify_undone(self) -> None:
        for listener in self.undo_listeners:
            listener(self.transaction)

    def notify_lost(self) -> None:
        """Reports a broken connection: the next one may lead to another copy of the database."""
        for listener in self.lost_listeners:
            listener()

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
        return self._connection

    def _close_broken(self) -> None:
        """Closes a connection that failed in an unknown state; the next write opens another."""
        if self._connection is not None and (
            self._connection.invalidated or self._connection.in_transaction()
        ):
            self._close_connection()

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self.notify_lost()
            try:
                connection.close()
            except Exception:
                logger.warning("closing a database connection failed", exc_info=True)


def _unknown_outcome(error: _CommitOutcomeUnknown) -> WriteFailed:
    unavailable = ServerUnavailable(
        "the database connection broke during a commit",
        hints=("check whether the change was stored, then retry it",),
    )
    unavailable.__cause__ = error
    return WriteFailed(unavailable)


def _group_by_batch(items: list[_QueuedWrite]) -> list[list[_QueuedWrite]]:
    """Groups the calls of one batch, at the position of the first; plain writes stay separate."""
    batches: dict[Any, list[_QueuedWrite]] = defaultdict(list)
    for item in items:
        batches[id(item) if item.batch is run_each else item.batch].append(item)
    return list(batches.values())


def _run_batch(conn: Connection, group: list[_QueuedWrite]) -> dict[_QueuedWrite, Outcome]:
    results = group[0].batch(conn, [item.argument for item in group])
    pairs = zip(group, results, strict=True)
    return {item: WriteFailed(result) if isinstance(result, Exception) else result for item, result in pairs}


def _roll_back_to(conn: Connection, savepoint: NestedTransaction, error: Exception) -> None:
    try:
        savepoint.rollback()
    except Exception:
        raise _TransactionLost from error
    if conn.invalidated:
        raise _TransactionLost from error


def _resolve(items: list[_QueuedWrite], outcomes: list[Outcome]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Outcome]]] = defaultdict(list)
    for item, outcome in zip(items, outcomes, strict=True):
        by_loop[item.loop].append((item.future, outcome))
    for loop, pairs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_results, pairs)
        except RuntimeError:
            pass  # the caller's loop is closed: the write is stored, and no caller waits


def _set_results(pairs: list[tuple[asyncio.Future[Any], Outcome]]) -> None:
    for future, outcome in pairs:
        if future.done():
            continue
        if isinstance(outcome, WriteFailed):
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome)

"""The readers' picture of what a policy sees: kept between snapshots, brought up to date from what this
process itself wrote since, or from the rows that were touched since. What did not change is the same object
again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection, bindparam, select

from hopyard.domain.attempt import AttemptPhase
from hopyard.domain.chunked import Chunks
from hopyard.domain.cluster import Node, Promise, Running, Snapshot
from hopyard.domain.gang import Gang
from hopyard.domain.ids import AttemptId, GangId, NodeId, Version
from hopyard.domain.queue import ONE_QUEUE, QueueTree, Used
from hopyard.domain.reservation import Reservation
from hopyard.domain.run import RunPhase
from hopyard.stores.sql import history_rows, live_rows, node_rows, promise_rows, queue_rows
from hopyard.stores.sql.gang_rows import GANG_COLUMNS, to_gang
from hopyard.stores.sql.history_rows import UsedKey
from hopyard.stores.sql.journal import Entry, Journal
from hopyard.stores.sql.marks import Marks, read_marks
from hopyard.stores.sql.tables import runs

T = TypeVar("T")

_QUEUED = str(RunPhase.QUEUED)
_STANDING = select(*GANG_COLUMNS, runs.c.phase, runs.c.held_by)
_WAITING = _STANDING.where(runs.c.phase == _QUEUED)
_TOUCHED = _STANDING.where(runs.c.touched > bindparam("b_clock"))
_WAITING_IDS = select(runs.c.id).where(runs.c.phase == _QUEUED, runs.c.held_by.is_(None))


class View:
    """Asked by several reading threads, one at a time. What it gave out is never changed, only replaced."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._known = Marks()
        self._waiting: Chunks[GangId, Gang] = Chunks()
        self._delayed: dict[GangId, Gang] = {}  # of those that wait, not to be tried before their time
        self._running: Chunks[AttemptId, Running] = Chunks()
        self._phases: dict[AttemptId, str] = {}
        self._told_phases: Mapping[AttemptId, str] | None = None  # those, as long as they are the same
        self._nodes: dict[NodeId, Node] = {}
        self._tree: QueueTree = ONE_QUEUE
        self._reservations: tuple[Reservation, ...] = ()
        self._promises: dict[GangId, Promise] = {}
        self._used: dict[UsedKey, Used] = {}
        self._durations: dict[str, tuple[float, ...]] = {}

    def read(self, conn: Connection, tell: Callable[[], T]) -> T:
        """What `tell` says of the state that the connection sees."""
        with self._lock:
            self._refresh(conn)
            return tell()

    def follow(self, now: Marks, tell: Callable[[], T]) -> T | None:
        """What `tell` says of the state with these marks; None where rows must be read for that, or others
        are reading some."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            before = self._known
            if now != before:
                entries = self._journal.between(before, now)
                if entries is None or _by_others(now, before):
                    return None
                self._follow(entries)
                self._known = now
            return tell()
        finally:
            self._lock.release()

    # Each is a `tell` of the above.

    def snapshot(self, now: datetime) -> Snapshot:
        for gang in [
            gang for gang in self._delayed.values() if gang.not_before is None or gang.not_before <= now
        ]:
            self._waiting[gang.id] = self._delayed.pop(gang.id)
        return Snapshot(
            version=Version(self._known.version),
            now=now,
            nodes=self._nodes,
            pending=self._waiting.seen(),
            running=self._running.seen(),
            queues=self._tree,
            used=self._used,
            reservations=self._reservations,
            promises=self._promises,
            durations=self._durations,
            delayed=tuple(self._delayed.values()),
        )

    def live_attempts(self) -> Mapping[AttemptId, str]:
        if self._told_phases is None:
            self._told_phases = dict(self._phases)
        return self._told_phases

    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    def _refresh(self, conn: Connection) -> None:
        now, before = read_marks(conn), self._known
        if now.clock < before.clock:  # the database was replaced by an older copy
            self._forget()
            self._journal.forget()
            before = self._known
        if now == before:
            return
        if now.nodes > before.nodes:
            self._take_nodes(conn, before)
        if now.queues > before.queues:
            self._tree = queue_rows.read_tree(conn)
        if now.reservations > before.reservations:
            self._reservations = queue_rows.all_reservations(conn)
        entries = self._journal.between(before, now)
        if entries is not None:
            self._follow(entries)
        else:
            self._read(conn, now, before)
        self._known = now

    def _follow(self, entries: list[Entry]) -> None:
        """What this process wrote."""
        for entry in entries:
            for id_, told in entry.attempts.items():
                self._see(id_, told)
            for gang in entry.placed:
                self._waits_no_more(gang)
            for submitted in entry.submitted:
                self._waiting[submitted.id] = submitted
            if entry.used:
                self._used = {**self._used, **entry.used}
            if entry.durations:
                self._durations = {**self._durations, **entry.durations}
            if entry.promises is not None:
                self._promises = dict(entry.promises)

    def _see(self, id_: AttemptId, told: tuple[Running, str] | None) -> None:
        """An attempt and its phase as they are now, or that it is over."""
        self._told_phases = None
        if told is None:
            self._phases.pop(id_, None)
            self._running.discard(id_)
            return
        seen, self._phases[id_] = told
        known = self._running.get(id_)
        if known is not None and known.placement is not seen.placement:  # equal: an attempt never moves
            seen = replace(seen, placement=known.placement)
        if known != seen:
            self._running[id_] = seen

    def _read(self, conn: Connection, now: Marks, before: Marks) -> None:
        """The rows that were touched since."""
        missed = now.removed > before.clock
        if now.attempts > before.attempts or missed:
            self._take_attempts(conn, before, missed=missed)
        if now.runs > before.runs or missed:
            self._take_runs(conn, before, missed=missed)
        if now.promises > before.promises:
            self._promises = promise_rows.all_promises(conn)
        if now.learnt > before.learnt:
            self._used = {**self._used, **history_rows.used_since(conn, before.learnt)}
            self._durations = {**self._durations, **history_rows.durations_since(conn, before.learnt)}

    def _take_nodes(self, conn: Connection, before: Marks) -> None:
        touched = {node.id: node for node in node_rows.nodes_since(conn, before.nodes)}
        there = node_rows.node_ids(conn)
        nodes = {**self._nodes, **touched}
        self._nodes = {name: nodes[name] for name in sorted(there)}

    def _take_attempts(self, conn: Connection, before: Marks, *, missed: bool) -> None:
        """missed: some may be gone with their runs."""
        running = self._running
        for row in live_rows.touched_since(conn, before.attempts):
            id_ = AttemptId(row.attempt)
            seen = (
                (live_rows.to_running(row, running.get(id_)), str(AttemptPhase(row.phase)))
                if row.live
                else None
            )
            self._see(id_, seen)
        if missed:
            for gone in set(running) - live_rows.live_ids(conn):
                self._see(gone, None)

    def _take_runs(self, conn: Connection, before: Marks, *, missed: bool) -> None:
        rows = conn.execute(_WAITING) if before.runs < 0 else conn.execute(_TOUCHED, {"b_clock": before.runs})
        for row in rows:
            if row.phase == _QUEUED and row.held_by is None:
                self._wait(to_gang(row))
            else:
                self._waits_no_more(GangId(row.id))
        if missed:
            for gone in {*self._waiting, *self._delayed}.difference(conn.execute(_WAITING_IDS).scalars()):
                self._waits_no_more(gone)

    def _wait(self, gang: Gang) -> None:
        if gang.not_before is None:
            self._delayed.pop(gang.id, None)
            self._waiting[gang.id] = gang
        else:  # where its time has come, the next snapshot says so
            self._waiting.discard(gang.id)
            self._delayed[gang.id] = gang

    def _waits_no_more(self, gang: GangId) -> None:
        self._waiting.discard(gang)
        self._delayed.pop(gang, None)


def _by_others(now: Marks, before: Marks) -> bool:
    """Whether something changed that stands in rows only."""
    return now.nodes > before.nodes or now.queues > before.queues or now.reservations > before.reservations

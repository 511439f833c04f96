"""The readers' cache of the parts of snapshots. It is updated from the change log of this process, or from
the rows changed since the last snapshot. Unchanged parts stay the same objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection, bindparam, select

from hopyard.domain.attempt import AttemptPhase
from hopyard.domain.cluster import Node, Promise, Running, Snapshot
from hopyard.domain.gang import Gang
from hopyard.domain.ids import AttemptId, GangId, NodeId, Version
from hopyard.domain.persistent_sequence import PersistentMap
from hopyard.domain.queue import SINGLE_QUEUE_TREE, PastUsage, QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.run import RunPhase
from hopyard.stores.sql import history_rows, live_attempt_rows, node_rows, promise_rows, queue_rows
from hopyard.stores.sql.change_log import ChangeLog, ChangeSet
from hopyard.stores.sql.gang_rows import GANG_COLUMNS, to_gang
from hopyard.stores.sql.history_rows import PastUsageKey
from hopyard.stores.sql.tables import runs
from hopyard.stores.sql.versions import TableVersions, read_versions

T = TypeVar("T")

_QUEUED = str(RunPhase.QUEUED)
_SELECT_RUNS = select(*GANG_COLUMNS, runs.c.phase, runs.c.held_by)
_SELECT_PENDING = _SELECT_RUNS.where(runs.c.phase == _QUEUED)
_SELECT_TOUCHED = _SELECT_RUNS.where(runs.c.touched > bindparam("b_clock"))
_SELECT_PENDING_IDS = select(runs.c.id).where(runs.c.phase == _QUEUED, runs.c.held_by.is_(None))


class SnapshotCache:
    """Used by several reading threads, one at a time. Returned objects are never changed, only replaced."""

    def __init__(self, change_log: ChangeLog) -> None:
        self._change_log = change_log
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._synced_versions = TableVersions()
        self._pending: PersistentMap[GangId, Gang] = PersistentMap()
        self._backing_off: dict[GangId, Gang] = {}  # waiting gangs that are not retried before their time
        self._running: PersistentMap[AttemptId, Running] = PersistentMap()
        self._phases: dict[AttemptId, str] = {}
        self._phases_view: Mapping[AttemptId, str] | None = None  # a copy of the phases, until they change
        self._nodes: dict[NodeId, Node] = {}
        self._tree: QueueTree = SINGLE_QUEUE_TREE
        self._reservations: tuple[Reservation, ...] = ()
        self._promises: dict[GangId, Promise] = {}
        self._past_usage: dict[PastUsageKey, PastUsage] = {}
        self._durations: dict[str, tuple[float, ...]] = {}

    def read_fresh(self, conn: Connection, read_cache: Callable[[], T]) -> T:
        """Returns the result of `read_cache` for the state that the connection sees."""
        with self._lock:
            self._refresh(conn)
            return read_cache()

    def read_following(self, now: TableVersions, read_cache: Callable[[], T]) -> T | None:
        """Returns the result of `read_cache` for the state with these versions. Returns None if rows must be
        read for it, or while another thread reads some."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            before = self._synced_versions
            if now != before:
                entries = self._change_log.changes_between(before, now)
                if entries is None or _requires_row_reads(now, before):
                    return None
                self._apply_change_sets(entries)
                self._synced_versions = now
            return read_cache()
        finally:
            self._lock.release()

    # Each of these methods is a `read_cache` for the methods above.

    def snapshot(self, now: datetime) -> Snapshot:
        for gang in [
            gang for gang in self._backing_off.values() if gang.not_before is None or gang.not_before <= now
        ]:
            self._pending[gang.id] = self._backing_off.pop(gang.id)
        return Snapshot(
            version=Version(self._synced_versions.version),
            now=now,
            nodes=self._nodes,
            pending=self._pending.to_sequence(),
            running=self._running.to_sequence(),
            queues=self._tree,
            past_usage=self._past_usage,
            reservations=self._reservations,
            promises=self._promises,
            durations=self._durations,
            backing_off=tuple(self._backing_off.values()),
        )

    def live_attempts(self) -> Mapping[AttemptId, str]:
        if self._phases_view is None:
            self._phases_view = dict(self._phases)
        return self._phases_view

    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    def _refresh(self, conn: Connection) -> None:
        now, before = read_versions(conn), self._synced_versions
        if now.clock < before.clock:  # the database was replaced by an older copy
            self._reset()
            self._change_log.clear()
            before = self._synced_versions
        if now == before:
            return
        if now.nodes > before.nodes:
            self._read_nodes(conn, before)
        if now.queues > before.queues:
            self._tree = queue_rows.read_tree(conn)
        if now.reservations > before.reservations:
            self._reservations = queue_rows.all_reservations(conn)
        entries = self._change_log.changes_between(before, now)
        if entries is not None:
            self._apply_change_sets(entries)
        else:
            self._read_changes(conn, now, before)
        self._synced_versions = now

    def _apply_change_sets(self, entries: list[ChangeSet]) -> None:
        """Applies changes that this process wrote."""
        for entry in entries:
            for attempt, running_and_phase in entry.attempts.items():
                self._set_attempt(attempt, running_and_phase)
            for gang in entry.no_longer_pending:
                self._remove_pending(gang)
            for submitted in entry.submitted:
                self._pending[submitted.id] = submitted
            if entry.past_usage:
                self._past_usage = {**self._past_usage, **entry.past_usage}
            if entry.durations:
                self._durations = {**self._durations, **entry.durations}
            if entry.promises is not None:
                self._promises = dict(entry.promises)

    def _set_attempt(self, id_: AttemptId, running_and_phase: tuple[Running, str] | None) -> None:
        """Sets an attempt and its phase, or removes it (None)."""
        self._phases_view = None
        if running_and_phase is None:
            self._phases.pop(id_, None)
            self._running.discard(id_)
            return
        running, self._phases[id_] = running_and_phase
        previous = self._running.get(id_)
        # equal: an attempt never moves
        if previous is not None and previous.placement is not running.placement:
            running = replace(running, placement=previous.placement)
        if previous != running:
            self._running[id_] = running

    def _read_changes(self, conn: Connection, now: TableVersions, before: TableVersions) -> None:
        """Applies the rows changed since these versions."""
        rows_removed = now.removed > before.clock
        if now.attempts > before.attempts or rows_removed:
            self._read_attempts(conn, before, rows_removed=rows_removed)
        if now.runs > before.runs or rows_removed:
            self._read_runs(conn, before, rows_removed=rows_removed)
        if now.promises > before.promises:
            self._promises = promise_rows.all_promises(conn)
        if now.learnt > before.learnt:
            self._past_usage = {**self._past_usage, **history_rows.past_usage_since(conn, before.learnt)}
            self._durations = {**self._durations, **history_rows.durations_since(conn, before.learnt)}

    def _read_nodes(self, conn: Connection, before: TableVersions) -> None:
        changed = {node.id: node for node in node_rows.nodes_since(conn, before.nodes)}
        ids = node_rows.node_ids(conn)
        nodes = {**self._nodes, **changed}
        self._nodes = {name: nodes[name] for name in sorted(ids)}

    def _read_attempts(self, conn: Connection, before: TableVersions, *, rows_removed: bool) -> None:
        """Reads changed attempts. rows_removed: some may have been deleted with their runs."""
        running = self._running
        for row in live_attempt_rows.touched_since(conn, before.attempts):
            attempt = AttemptId(row.attempt)
            running_and_phase = (
                (live_attempt_rows.to_running(row, running.get(attempt)), str(AttemptPhase(row.phase)))
                if row.live
                else None
            )
            self._set_attempt(attempt, running_and_phase)
        if rows_removed:
            for removed in set(running) - live_attempt_rows.live_ids(conn):
                self._set_attempt(removed, None)

    def _read_runs(self, conn: Connection, before: TableVersions, *, rows_removed: bool) -> None:
        rows = (
            conn.execute(_SELECT_PENDING)
            if before.runs < 0
            else conn.execute(_SELECT_TOUCHED, {"b_clock": before.runs})
        )
        for row in rows:
            if row.phase == _QUEUED and row.held_by is None:
                self._add_pending(to_gang(row))
            else:
                self._remove_pending(GangId(row.id))
        if rows_removed:
            for removed in {*self._pending, *self._backing_off}.difference(
                conn.execute(_SELECT_PENDING_IDS).scalars()
            ):
                self._remove_pending(removed)

    def _add_pending(self, gang: Gang) -> None:
        if gang.not_before is None:
            self._backing_off.pop(gang.id, None)
            self._pending[gang.id] = gang
        else:  # the next snapshot adds it once its time has come
            self._pending.discard(gang.id)
            self._backing_off[gang.id] = gang

    def _remove_pending(self, gang: GangId) -> None:
        self._pending.discard(gang)
        self._backing_off.pop(gang, None)


def _requires_row_reads(now: TableVersions, before: TableVersions) -> bool:
    """Returns whether parts changed that are only in rows."""
    return now.nodes > before.nodes or now.queues > before.queues or now.reservations > before.reservations

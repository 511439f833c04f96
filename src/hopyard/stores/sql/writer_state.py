"""The writer's cache of live attempts. Each write first updates it from the rows that other writers changed.

A write that changes a row under a stamp of `refresh` also changes this cache, so that the row need not be
read again. After an undone transaction, everything is read again.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from hopyard.domain.amounts import placed_amounts, total_amounts
from hopyard.domain.cluster import Node, Promise, Running
from hopyard.domain.ids import AttemptId, GangId, NodeId, RunId
from hopyard.domain.node_allocations import NodeAllocations
from hopyard.domain.queue import Amounts, PastUsage
from hopyard.domain.quota_check import QuotaCheck
from hopyard.stores.sql import history_rows, live_attempt_rows, node_rows, promise_rows, queue_rows
from hopyard.stores.sql.change_log import ChangeSet
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.history_rows import PastUsageKey
from hopyard.stores.sql.live_attempt_rows import LiveAttempt
from hopyard.stores.sql.versions import TableVersions, WriteStamp, read_versions


class _PendingChangeSet:
    """The changes since the versions were last written."""

    def __init__(self) -> None:
        self.attempts: list[AttemptId] = []
        self.no_longer_pending: list[GangId] = []
        self.past_usage: dict[PastUsageKey, PastUsage] = {}
        self.durations: dict[str, tuple[float, ...]] = {}
        self.requeued = False


class WriterState:
    """The cache of live attempts and quotas. Used by the writing thread alone."""

    def __init__(self, database: Database) -> None:
        self._database, self._change_log = database, database.change_log
        self._reset()
        database.on_undo(self._on_undone)

    def _reset(self) -> None:
        self._synced_versions = TableVersions()
        self._transaction = -1
        self.attempts: dict[AttemptId, LiveAttempt] = {}
        self.attempt_of_run: dict[RunId, AttemptId] = {}
        self.attempts_of_engine: dict[str, set[AttemptId]] = {}
        self.node_allocations = NodeAllocations()
        self.quota_check = QuotaCheck()
        self.promises: dict[GangId, Promise] = {}
        self.past_usage: dict[PastUsageKey, PastUsage] = {}
        self.durations: dict[str, tuple[float, ...]] = {}
        # the last reported nodes of each engine, while none of them was changed
        self.reported_nodes: dict[str, tuple[Node, ...]] = {}
        self._amounts: dict[AttemptId, Amounts] = {}
        self._totals: Amounts | None = None
        self._change_set = _PendingChangeSet()

    def _on_undone(self, transaction: int) -> None:
        if self._transaction == transaction:
            self._reset()

    @property
    def nodes(self) -> dict[NodeId, Node]:
        return self.node_allocations.nodes

    @property
    def totals(self) -> Amounts:
        """The total amounts of all ready nodes."""
        if self._totals is None:
            self._totals = total_amounts(node for node in self.nodes.values() if node.ready)
        return self._totals

    def refresh(self, conn: Connection) -> WriteStamp:
        """Updates the cache to the state of this transaction; returns the stamp for its changes."""
        now, before = read_versions(conn), self._synced_versions
        if now.clock < before.clock:  # the database was replaced by an older copy
            self._reset()
            self._change_log.clear()
            before = self._synced_versions
        self._transaction = self._database.transaction
        if now != before:
            self._read_changes(conn, now, before)
        self._change_set = _PendingChangeSet()
        return WriteStamp(conn, now, on_written=self._on_versions_written)

    def _on_versions_written(self, versions: TableVersions) -> None:
        before, change_set = self._synced_versions, self._change_set
        self._synced_versions, self._change_set = versions, _PendingChangeSet()
        if change_set.requeued:  # its new hold and backoff are only in its row
            return
        attempts = {attempt: self._policy_view(attempt) for attempt in change_set.attempts}
        promises = self.promises if versions.promises > before.promises else None
        logged = ChangeSet(
            versions,
            attempts,
            tuple(change_set.no_longer_pending),
            past_usage=change_set.past_usage,
            durations=change_set.durations,
            promises=promises,
        )
        self._change_log.write(before, logged)

    def _policy_view(self, id_: AttemptId) -> tuple[Running, str] | None:
        attempt = self.attempts.get(id_)
        return None if attempt is None else (attempt.to_running(), str(attempt.phase))

    def _read_changes(self, conn: Connection, now: TableVersions, before: TableVersions) -> None:
        if now.nodes > before.nodes:
            self._read_nodes(conn, before)
        if now.queues > before.queues:
            self.quota_check.set_tree(queue_rows.read_tree(conn))
        if now.attempts > before.attempts:
            self._read_attempts(conn, before)
        if now.removed > before.clock:  # some may have been deleted with their runs
            for removed in self.attempts.keys() - live_attempt_rows.live_ids(conn):
                self.remove_attempt(removed)
        if now.promises > before.promises:
            self.promises = promise_rows.all_promises(conn)
        if now.learnt > before.learnt:
            self.past_usage.update(history_rows.past_usage_since(conn, before.learnt))
            self.durations.update(history_rows.durations_since(conn, before.learnt))
        self._synced_versions = now

    def _read_nodes(self, conn: Connection, before: TableVersions) -> None:
        for node in node_rows.nodes_since(conn, before.nodes):
            self.set_node(node)
        for removed in self.nodes.keys() - node_rows.node_ids(conn):
            self.remove_node(removed)
        self.reported_nodes.clear()

    def _read_attempts(self, conn: Connection, before: TableVersions) -> None:
        for row in live_attempt_rows.touched_since(conn, before.attempts):
            if row.live:
                self.set_attempt(live_attempt_rows.to_live_attempt(row, self.attempts.get(row.attempt)))
            else:
                self.remove_attempt(row.attempt)

    def set_node(self, node: Node) -> None:
        self.node_allocations.set_node(node)
        self._totals = None

    def remove_node(self, node: NodeId) -> None:
        self.node_allocations.drop_node(node)
        self._totals = None

    def set_attempt(self, attempt: LiveAttempt) -> None:
        """Sets an attempt. A new one is added to the allocations of nodes and to its queue's usage."""
        previous = self.attempts.get(attempt.id)
        self.attempts[attempt.id] = attempt
        if previous is None:
            self.node_allocations.count(attempt.placement)
            self._count_attempt(attempt)

    def add_allocated(self, attempt: LiveAttempt) -> None:
        """Adds a new attempt whose placement is allocated already."""
        self.attempts[attempt.id] = attempt
        self._count_attempt(attempt)
        self._change_set.attempts.append(attempt.id)
        self.remove_pending(attempt.run)

    def remove_pending(self, run: RunId) -> None:
        """Records that a run no longer waits."""
        self._change_set.no_longer_pending.append(GangId(run))

    def mark_pending_changed(self) -> None:
        """Records that a waiting run was changed; its new state is only in its row."""
        self._change_set.requeued = True

    def mark_attempt_changed(self, attempt: AttemptId, *, requeued: bool = False) -> None:
        """Records that an attempt changed or ended. requeued: its run waits again."""
        self._change_set.attempts.append(attempt)
        self._change_set.requeued |= requeued

    def set_history(
        self, past_usage: Mapping[PastUsageKey, PastUsage], durations: Mapping[str, tuple[float, ...]]
    ) -> None:
        """Records new past usage and durations."""
        self.past_usage.update(past_usage)
        self.durations.update(durations)
        self._change_set.past_usage.update(past_usage)
        self._change_set.durations.update(durations)

    def _count_attempt(self, attempt: LiveAttempt) -> None:
        self.attempt_of_run[attempt.run] = attempt.id
        self.attempts_of_engine.setdefault(attempt.engine, set()).add(attempt.id)
        amounts = self._amounts[attempt.id] = placed_amounts(attempt.placement, self.nodes)
        self.quota_check.charge(attempt.gang.queue, attempt.gang.user, amounts)

    def remove_attempt(self, id_: AttemptId) -> None:
        """Removes an ended attempt and frees its resources."""
        attempt = self.attempts.pop(id_, None)
        if attempt is None:
            return
        if self.attempt_of_run.get(attempt.run) == id_:
            del self.attempt_of_run[attempt.run]
        self.attempts_of_engine[attempt.engine].discard(id_)
        self.node_allocations.count(attempt.placement, -1)
        self.quota_check.charge(attempt.gang.queue, attempt.gang.user, self._amounts.pop(id_), -1)

    def amounts_of(self, attempt: AttemptId) -> Amounts:
        """Returns the amounts that a live attempt uses."""
        return self._amounts[attempt]

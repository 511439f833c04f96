"""The writer's picture of what lives: kept between writes, brought up to date at the beginning of each from
the rows that others touched since. Who changes a row under a stamp of `refresh` changes it here too, so that
it need not be read again; where a transaction is undone, all of it is read anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from hopyard.domain.amounts import placed, totals
from hopyard.domain.charges import Charges
from hopyard.domain.cluster import Node, Promise, Running
from hopyard.domain.holdings import Holdings
from hopyard.domain.ids import AttemptId, GangId, NodeId, RunId
from hopyard.domain.queue import Amounts, Used
from hopyard.stores.sql import history_rows, live_rows, node_rows, promise_rows, queue_rows
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.history_rows import UsedKey
from hopyard.stores.sql.journal import Entry
from hopyard.stores.sql.live_rows import LiveAttempt
from hopyard.stores.sql.marks import Marks, Stamp, read_marks


class _Draft:
    """What was changed since the marks were written last."""

    def __init__(self) -> None:
        self.attempts: list[AttemptId] = []
        self.placed: list[GangId] = []
        self.used: dict[UsedKey, Used] = {}
        self.durations: dict[str, tuple[float, ...]] = {}
        self.requeued = False


class Live:
    """Used by the writing thread alone."""

    def __init__(self, database: Database) -> None:
        self._database, self._journal = database, database.journal
        self._forget()
        database.on_undo(self._undone)

    def _forget(self) -> None:
        self._known = Marks()
        self._transaction = -1
        self.attempts: dict[AttemptId, LiveAttempt] = {}
        self.of_run: dict[RunId, AttemptId] = {}
        self.of_engine: dict[str, set[AttemptId]] = {}
        self.holdings = Holdings()
        self.charges = Charges()
        self.promises: dict[GangId, Promise] = {}
        self.used: dict[UsedKey, Used] = {}
        self.durations: dict[str, tuple[float, ...]] = {}
        self.said_nodes: dict[
            str, tuple[Node, ...]
        ] = {}  # what each engine said last of its nodes, for as long as none was changed
        self._amounts: dict[AttemptId, Amounts] = {}
        self._totals: Amounts | None = None
        self._draft = _Draft()

    def _undone(self, transaction: int) -> None:
        if self._transaction == transaction:
            self._forget()

    @property
    def nodes(self) -> dict[NodeId, Node]:
        return self.holdings.nodes

    @property
    def totals(self) -> Amounts:
        """What all nodes that are there have together."""
        if self._totals is None:
            self._totals = totals(node for node in self.nodes.values() if node.ready)
        return self._totals

    def refresh(self, conn: Connection) -> Stamp:
        """Bring the picture to what this transaction sees; the stamp for what it is about to change."""
        now, before = read_marks(conn), self._known
        if now.clock < before.clock:  # the database was replaced by an older copy
            self._forget()
            self._journal.forget()
            before = self._known
        self._transaction = self._database.transaction
        if now != before:
            self._take_in(conn, now, before)
        self._draft = _Draft()
        return Stamp(conn, now, written=self._follow)

    def _follow(self, written: Marks) -> None:
        before, draft = self._known, self._draft
        self._known, self._draft = written, _Draft()
        if draft.requeued:  # how it waits now stands in its row alone
            return
        attempts = {id_: self._seen(id_) for id_ in draft.attempts}
        promises = self.promises if written.promises > before.promises else None
        told = Entry(
            written,
            attempts,
            tuple(draft.placed),
            used=draft.used,
            durations=draft.durations,
            promises=promises,
        )
        self._journal.write(before, told)

    def _seen(self, id_: AttemptId) -> tuple[Running, str] | None:
        found = self.attempts.get(id_)
        return None if found is None else (found.running(), str(found.phase))

    def _take_in(self, conn: Connection, now: Marks, before: Marks) -> None:
        if now.nodes > before.nodes:
            self._take_nodes(conn, before)
        if now.queues > before.queues:
            self.charges.set_tree(queue_rows.read_tree(conn))
        if now.attempts > before.attempts:
            self._take_attempts(conn, before)
        if now.removed > before.clock:  # some may be gone with their runs
            for gone in self.attempts.keys() - live_rows.live_ids(conn):
                self.drop(gone)
        if now.promises > before.promises:
            self.promises = promise_rows.all_promises(conn)
        if now.learnt > before.learnt:
            self.used.update(history_rows.used_since(conn, before.learnt))
            self.durations.update(history_rows.durations_since(conn, before.learnt))
        self._known = now

    def _take_nodes(self, conn: Connection, before: Marks) -> None:
        for node in node_rows.nodes_since(conn, before.nodes):
            self.set_node(node)
        for gone in self.nodes.keys() - node_rows.node_ids(conn):
            self.drop_node(gone)
        self.said_nodes.clear()

    def _take_attempts(self, conn: Connection, before: Marks) -> None:
        for row in live_rows.touched_since(conn, before.attempts):
            if row.live:
                self.put(live_rows.to_live(row, self.attempts.get(row.attempt)))
            else:
                self.drop(row.attempt)

    def set_node(self, node: Node) -> None:
        self.holdings.set_node(node)
        self._totals = None

    def drop_node(self, node: NodeId) -> None:
        self.holdings.drop_node(node)
        self._totals = None

    def put(self, attempt: LiveAttempt) -> None:
        """An attempt as it is now. What a new one uses of its queue is counted; what it holds on nodes too,
        unless `taken`."""
        known = self.attempts.get(attempt.id)
        self.attempts[attempt.id] = attempt
        if known is None:
            self.holdings.hold(attempt.placement)
            self._count(attempt)

    def put_taken(self, attempt: LiveAttempt) -> None:
        """A new attempt whose place was taken already."""
        self.attempts[attempt.id] = attempt
        self._count(attempt)
        self._draft.attempts.append(attempt.id)
        self.waits_no_longer(attempt.run)

    def waits_no_longer(self, run: RunId) -> None:
        """It is out of the queue."""
        self._draft.placed.append(GangId(run))

    def waits_otherwise(self) -> None:
        """A run that waits was changed: how it waits now stands in its row alone."""
        self._draft.requeued = True

    def changed(self, attempt: AttemptId, *, requeued: bool = False) -> None:
        """It is otherwise than before, or over. requeued: its run waits again."""
        self._draft.attempts.append(attempt)
        self._draft.requeued |= requeued

    def learn(self, used: Mapping[UsedKey, Used], durations: Mapping[str, tuple[float, ...]]) -> None:
        """What users have used, and how long runs took, is this now."""
        self.used.update(used)
        self.durations.update(durations)
        self._draft.used.update(used)
        self._draft.durations.update(durations)

    def _count(self, attempt: LiveAttempt) -> None:
        self.of_run[attempt.run] = attempt.id
        self.of_engine.setdefault(attempt.engine, set()).add(attempt.id)
        amounts = self._amounts[attempt.id] = placed(attempt.placement, self.nodes)
        self.charges.charge(attempt.gang.queue, attempt.gang.user, amounts)

    def drop(self, id_: AttemptId) -> None:
        """It is over: what it held is free."""
        attempt = self.attempts.pop(id_, None)
        if attempt is None:
            return
        if self.of_run.get(attempt.run) == id_:
            del self.of_run[attempt.run]
        self.of_engine[attempt.engine].discard(id_)
        self.holdings.hold(attempt.placement, -1)
        self.charges.charge(attempt.gang.queue, attempt.gang.user, self._amounts.pop(id_), -1)

    def amounts(self, attempt: AttemptId) -> Amounts:
        """What a live attempt uses."""
        return self._amounts[attempt]

"""The truth about what waits and what runs, in SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, select, update

from hopyard.domain import attempt_news
from hopyard.domain.attempt import AttemptPhase, AttemptStatus, ExitKind
from hopyard.domain.cluster import Hold, KnownServer, Node, Observation, Plan, PlanResult, Snapshot
from hopyard.domain.ids import AttemptId, GangId, NodeId, RunId, RunName, Version
from hopyard.domain.run import Run, RunEvent, RunPhase, moved, no_process_to_stop
from hopyard.domain.run_change import waits_no_longer, waits_otherwise
from hopyard.domain.suggest import close_names
from hopyard.errors import Conflict, NotFound
from hopyard.interfaces.cluster_store import Lease, Recorded
from hopyard.stores.sql import node_rows, server_rows
from hopyard.stores.sql.apply_plan import Applying
from hopyard.stores.sql.attempt_rows import Changes, OutOfStep
from hopyard.stores.sql.change_rows import check_unchanged, write_change
from hopyard.stores.sql.codec import decode_replicas, encode_exit, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.hold_rows import Change, HoldRows
from hopyard.stores.sql.lease_rows import check_epoch, drop_lease, take_lease
from hopyard.stores.sql.live import Live
from hopyard.stores.sql.live_rows import LiveAttempt
from hopyard.stores.sql.marks import Stamp, read_marks
from hopyard.stores.sql.promise_rows import replace_promises
from hopyard.stores.sql.tables import attempts, runs
from hopyard.stores.sql.view import View

T = TypeVar("T")

HOLDS_PER_COMMIT = 2000
_REPLICAS = select(attempts.c.replicas)
_TOUCH = update(attempts)
_CANCEL = update(runs).where(runs.c.phase == str(RunPhase.QUEUED))


class SqlClusterStore:
    """ClusterStore over a Database. One per Database: what it keeps in mind is large."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._view = View(database.journal)
        self._live = Live(database)
        self._holds = HoldRows(database)

    # -- who decides
    # --------------------------------------------------------------------------------------------------

    async def lead(self, holder: str, /, *, now: datetime, ttl: timedelta) -> Lease | None:
        return await self._database.write(
            lambda conn: take_lease(conn, holder, to_us(now), to_us(now + ttl)), vital=True
        )

    async def resign(self, holder: str, /) -> None:
        await self._database.write(lambda conn: drop_lease(conn, holder), vital=True)

    # -- plans
    # --------------------------------------------------------------------------------------------------------

    async def version(self) -> Version:
        return await self._database.read(lambda conn: Version(read_marks(conn).version))

    async def snapshot(self, *, now: datetime) -> Snapshot:
        return await self._see(lambda: self._view.snapshot(now))

    async def apply(self, plan: Plan, /, *, now: datetime, epoch: int) -> PlanResult:
        def write(conn: Connection) -> PlanResult:
            check_epoch(conn, epoch)
            return Applying(conn, self._live, self._holds, to_us(now)).apply(plan)

        return await self._write(write, vital=False)

    async def note_holds(
        self,
        holds: Sequence[Hold],
        /,
        *,
        based_on: Version,
        now: datetime,  # noqa: ARG002
        epoch: int,
    ) -> Sequence[RunId]:
        # They may be made only when they are looked at: neither requests nor other writes wait for that.
        wanted = await asyncio.to_thread(list, holds)

        def compare(conn: Connection) -> list[Change]:
            check_epoch(conn, epoch)
            return self._holds.compare(conn, wanted, based_on=based_on, epoch=epoch)

        def write(conn: Connection, some: Sequence[Change]) -> list[RunId]:
            check_epoch(conn, epoch)
            return self._holds.write(conn, some, based_on=based_on, epoch=epoch)

        changes = await self._database.write(compare)
        told: list[RunId] = []
        # in pieces, so that a placement need not wait for all
        for begin in range(0, len(changes), HOLDS_PER_COMMIT):
            told += await self._database.write(partial(write, some=changes[begin : begin + HOLDS_PER_COMMIT]))
        return told

    # -- news
    # --------------------------------------------------------------------------------------------------------

    async def record(
        self,
        engine: str,
        seen: Observation,
        /,
        *,
        now: datetime,
        complete: bool = True,
        launched: Collection[AttemptId] | None = None,
    ) -> Recorded:
        def write(conn: Connection) -> Recorded:
            changes = self._changes(conn, now)
            if complete:
                self._see_nodes(conn, changes, engine, seen.nodes)
            mine = self._live.of_engine.get(engine, set())
            for status in seen.attempts:
                if status.attempt in mine:
                    _hear(changes, self._live.attempts[status.attempt], status)
            if complete:
                gone_from = mine if launched is None else mine.intersection(launched)
                for gone in sorted(gone_from.difference(status.attempt for status in seen.attempts)):
                    found = self._live.attempts[gone]
                    if found.phase is not AttemptPhase.STARTING:
                        changes.make(found, _lost(found, attempt_news.VANISHED))
            return changes.finish()

        return await self._write(write)

    async def record_status(self, status: AttemptStatus, /, *, now: datetime) -> Recorded:
        def write(conn: Connection) -> Recorded:
            changes = self._changes(conn, now)
            found = self._live.attempts.get(status.attempt)
            if found is not None:
                _hear(changes, found, status)
            return changes.finish()

        return await self._write(write)

    async def replicas(self, attempt: AttemptId, /) -> AttemptStatus:
        def read(conn: Connection) -> AttemptStatus:
            text = conn.execute(_REPLICAS.where(attempts.c.id == attempt)).scalar()
            if text is None:
                raise NotFound(f"there is no attempt {attempt}")
            return AttemptStatus(attempt, decode_replicas(text))

        return await self._database.read(read)

    async def fail_launch(
        self, attempt: AttemptId, reason: str, /, *, now: datetime, kind: ExitKind = ExitKind.LOST
    ) -> Recorded:
        def write(conn: Connection) -> Recorded:
            changes = self._changes(conn, now)
            found = self._live.attempts.get(attempt)
            if found is not None:
                changes.make(found, attempt_news.fail_launch(found.before(), reason, kind))
            return changes.finish()

        return await self._write(write)

    async def request_stop(self, run: RunId, /, *, now: datetime) -> Recorded:
        def write(conn: Connection) -> Recorded:
            phase = _phase(conn, run)
            if phase.final:
                return Recorded()
            changes = self._changes(conn, now)
            if phase is RunPhase.QUEUED:
                return self._cancel(conn, changes, run, to_us(now))
            if (name := _offline_name(conn, run)) is not None:
                raise no_process_to_stop(name)
            conn.execute(update(runs).where(runs.c.id == run).values(stop_requested=True))
            attempt = self._live.of_run.get(run)
            if attempt is None:
                raise OutOfStep
            found = self._live.attempts[attempt]
            found.stop_requested = True
            conn.execute(_TOUCH.where(attempts.c.id == found.id).values(touched=changes.stamp.now))
            changes.stamp.touch("attempts", visible=False)
            if found.phase is not AttemptPhase.STOPPING:
                changes.make(found, attempt_news.stop(found.before()))
            return changes.finish()

        return await self._write(write)

    async def change(self, before: Run, after: Run, event: RunEvent, /) -> None:
        def write(conn: Connection) -> None:
            phase = _phase(conn, before.id)
            check_unchanged(conn, before, phase)
            visible = waits_otherwise(before, after)
            if visible and phase is not RunPhase.QUEUED:
                raise waits_no_longer(before, phase)
            stamp = self._live.refresh(conn)
            write_change(conn, before, after, event, stamp.now if visible else None)
            if visible:
                self._holds.drop(conn, [before.id])
                self._live.waits_otherwise()
                self._withdraw(conn, before.id, stamp)
                stamp.touch("runs")
                stamp.write()

        await self._write(write)

    async def request_preempt(self, run: RunId, reason: str, /, *, now: datetime) -> Recorded:
        def write(conn: Connection) -> Recorded:
            _phase(conn, run)
            applying = Applying(conn, self._live, self._holds, to_us(now))
            attempt = self._live.of_run.get(run)
            if attempt is None or self._live.attempts[attempt].phase is AttemptPhase.STOPPING:
                return Recorded()
            return applying.request_preempt(attempt, reason).finish()

        return await self._write(write)

    async def live_attempts(self) -> Mapping[AttemptId, str]:
        return await self._see(self._view.live_attempts)

    # -- nodes
    # --------------------------------------------------------------------------------------------------------

    async def nodes(self) -> Sequence[Node]:
        return await self._see(self._view.nodes)

    async def cordon(self, node: NodeId, on: bool, /, *, reason: str = "") -> Node:
        def write(conn: Connection) -> Node:
            stamp = self._live.refresh(conn)
            _known(self._live.nodes, node)
            found = node_rows.cordon(conn, self._live.nodes, node, on, reason, clock=stamp.now)
            if found != self._live.nodes[node]:
                self._live.set_node(found)
                stamp.touch("nodes")
                stamp.write()
            return found

        return await self._write(write)

    async def note_server(self, server: KnownServer, /) -> None:
        await self._database.write(lambda conn: server_rows.note(conn, server), vital=True)

    async def servers(self) -> Sequence[KnownServer]:
        return await self._database.read(server_rows.of_all)

    async def remove_node(self, node: NodeId, /) -> None:
        def write(conn: Connection) -> None:
            stamp = self._live.refresh(conn)
            _known(self._live.nodes, node)
            if self._live.nodes[node].ready:
                raise Conflict(
                    f"node {node} is there",
                    hints=("its engine would tell of it again: end that first, or cordon it",),
                )
            if self._live.holdings.held_on(node):
                raise Conflict(f"a run holds resources of node {node}", hints=("stop it first: hop ps",))
            engine = self._live.nodes[node].engine
            node_rows.delete_node(conn, node)
            self._live.drop_node(node)
            if all(other.engine != engine for other in self._live.nodes.values()):
                server_rows.delete(conn, engine)
            stamp.touch("nodes")
            stamp.write()

        await self._write(write)

    # -- what they share
    # ----------------------------------------------------------------------------------------------

    async def _see(self, tell: Callable[[], T]) -> T:
        """What the view tells of this moment. What this process wrote itself it knows, and only asks whether
        that is all."""
        marks = self._database.at_once(read_marks)
        told = None if marks is None else self._view.follow(marks, tell)
        return await self._database.read(lambda conn: self._view.read(conn, tell)) if told is None else told

    async def _write(self, write: Callable[[Connection], T], *, vital: bool = True) -> T:
        """Runs end and are stopped on a full disk as well; only new ones have to wait for space."""
        try:
            return await self._database.write(write, vital=vital)
        except OutOfStep:  # what it had in mind is forgotten with the transaction: now it is read anew
            return await self._database.write(write, vital=vital)

    def _changes(self, conn: Connection, now: datetime) -> Changes:
        return Changes(conn, self._live, self._live.refresh(conn), to_us(now))

    def _see_nodes(self, conn: Connection, changes: Changes, engine: str, seen: tuple[Node, ...]) -> None:
        if self._live.said_nodes.get(engine) == seen:
            return
        changed = node_rows.differences(self._live.nodes, engine, seen)
        if changed:
            node_rows.write_nodes(conn, self._live.nodes, changed, clock=changes.stamp.now)
            for node in changed:
                self._live.set_node(node)
            changes.stamp.touch("nodes")
        self._live.said_nodes[engine] = seen

    def _cancel(self, conn: Connection, changes: Changes, run: RunId, now: int) -> Recorded:
        """Take a run out of the queue."""
        ended = {"ended_at": now, "exit": encode_exit(attempt_news.CANCELLED_IN_QUEUE)}
        cancelled = str(moved(RunPhase.QUEUED, RunPhase.CANCELLED))
        values = {"phase": cancelled, "stop_requested": True, "touched": changes.stamp.now, **ended}
        conn.execute(_CANCEL.where(runs.c.id == run).values(values))
        self._holds.drop(conn, [run])
        self._live.waits_no_longer(run)
        self._withdraw(conn, run, changes.stamp)
        changes.stamp.touch("runs")
        changes.stamp.write()
        return Recorded(changed=(run,))

    def _withdraw(self, conn: Connection, run: RunId, stamp: Stamp) -> None:
        """What was promised to the run."""
        promises = {gang: one for gang, one in self._live.promises.items() if gang != GangId(run)}
        if replace_promises(conn, self._live.promises, promises):
            self._live.promises = promises
            stamp.touch("promises")


def _hear(changes: Changes, found: LiveAttempt, status: AttemptStatus) -> None:
    if status.replicas == found.idle or status.replicas == found.replicas:
        return
    after = attempt_news.take_in(found.before(), status)
    if after is None:
        found.idle = status.replicas
    changes.make(found, after)


def _lost(found: LiveAttempt, reason: str) -> attempt_news.After:
    return attempt_news.end(found.before(), AttemptPhase.LOST, attempt_news.lost(reason))


def _phase(conn: Connection, run: RunId) -> RunPhase:
    phase = conn.execute(select(runs.c.phase).where(runs.c.id == run)).scalar()
    if phase is None:
        raise NotFound(f"no run has the id {run}")
    return RunPhase(phase)


def _known(nodes: Iterable[NodeId], node: NodeId) -> None:
    known = list(nodes)
    if node not in known:
        close = close_names(node, known)
        raise NotFound(
            f"there is no node {node}",
            hints=tuple(f"did you mean `{name}`?" for name in close) or ("`hop node ls` lists them",),
        )


def _offline_name(conn: Connection, run: RunId) -> str | None:
    """The name of a run that was recorded offline; None for others."""
    row = conn.execute(
        select(runs.c.user_name, runs.c.project, runs.c.number).where(runs.c.id == run, runs.c.offline)
    ).one_or_none()
    return None if row is None else str(RunName(*row))

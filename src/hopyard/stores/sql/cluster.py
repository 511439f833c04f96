"""The truth about what waits and what runs, in SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, select, update

from hopyard.domain import attempt_transitions, requeue
from hopyard.domain.attempt import AttemptPhase, AttemptStatus, ExitKind
from hopyard.domain.cluster import Hold, Node, Observation, Plan, PlanResult, ServerRecord, Snapshot
from hopyard.domain.ids import AttemptId, GangId, NodeId, RunId, RunName, Version
from hopyard.domain.run import Run, RunEvent, RunPhase, checked_transition, no_process_conflict
from hopyard.domain.run_change import changes_scheduling, not_pending_conflict
from hopyard.domain.suggest import close_names
from hopyard.errors import Conflict, NotFound
from hopyard.interfaces.cluster_store import Lease, RecordResult
from hopyard.stores.sql import node_rows, server_rows
from hopyard.stores.sql.apply_plan import PlanApplier
from hopyard.stores.sql.attempt_rows import AttemptChanges, StateOutdated
from hopyard.stores.sql.codec import decode_replicas, encode_exit, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.hold_rows import HoldChange, HoldRows
from hopyard.stores.sql.lease_rows import acquire_lease, check_epoch, release_lease
from hopyard.stores.sql.live_attempt_rows import LiveAttempt
from hopyard.stores.sql.promise_rows import replace_promises
from hopyard.stores.sql.run_update_rows import check_run_unchanged, write_run_update
from hopyard.stores.sql.snapshot_cache import SnapshotCache
from hopyard.stores.sql.tables import attempts, runs
from hopyard.stores.sql.versions import WriteStamp, read_versions
from hopyard.stores.sql.writer_state import WriterState

T = TypeVar("T")

HOLDS_PER_COMMIT = 2000
_SELECT_REPLICAS = select(attempts.c.replicas)
_TOUCH_ATTEMPT = update(attempts)
_CANCEL_RUN = update(runs).where(runs.c.phase == str(RunPhase.QUEUED))


class SqlClusterStore:
    """ClusterStore over a Database. One per Database: what it keeps in mind is large."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._snapshot_cache = SnapshotCache(database.change_log)
        self._state = WriterState(database)
        self._holds = HoldRows(database)

    # -- who decides -----------------------------------------------------------------------------------------

    async def acquire_lease(self, holder: str, /, *, now: datetime, ttl: timedelta) -> Lease | None:
        return await self._database.write(
            lambda conn: acquire_lease(conn, holder, to_us(now), to_us(now + ttl)), vital=True
        )

    async def release_lease(self, holder: str, /) -> None:
        await self._database.write(lambda conn: release_lease(conn, holder), vital=True)

    # -- plans -----------------------------------------------------------------------------------------------

    async def version(self) -> Version:
        return await self._database.read(lambda conn: Version(read_versions(conn).version))

    async def snapshot(self, *, now: datetime) -> Snapshot:
        return await self._read_cache(lambda: self._snapshot_cache.snapshot(now))

    async def apply(self, plan: Plan, /, *, now: datetime, epoch: int) -> PlanResult:
        def write(conn: Connection) -> PlanResult:
            check_epoch(conn, epoch)
            return PlanApplier(conn, self._state, self._holds, to_us(now)).apply(plan)

        return await self._write(write, vital=False)

    async def record_holds(
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

        def compare(conn: Connection) -> list[HoldChange]:
            check_epoch(conn, epoch)
            return self._holds.find_changes(conn, wanted, based_on=based_on, epoch=epoch)

        def write(conn: Connection, some: Sequence[HoldChange]) -> list[RunId]:
            check_epoch(conn, epoch)
            return self._holds.write(conn, some, based_on=based_on, epoch=epoch)

        changes = await self._database.write(compare)
        told: list[RunId] = []
        # in pieces, so that a placement need not wait for all
        for begin in range(0, len(changes), HOLDS_PER_COMMIT):
            told += await self._database.write(partial(write, some=changes[begin : begin + HOLDS_PER_COMMIT]))
        return told

    # -- news ------------------------------------------------------------------------------------------------

    async def record_observation(
        self,
        engine: str,
        observed: Observation,
        /,
        *,
        now: datetime,
        complete: bool = True,
        launched: Collection[AttemptId] | None = None,
    ) -> RecordResult:
        def write(conn: Connection) -> RecordResult:
            changes = self._begin_changes(conn, now)
            if complete:
                self._write_observed_nodes(conn, changes, engine, observed.nodes)
            mine = self._state.attempts_of_engine.get(engine, set())
            for status in observed.attempts:
                if status.attempt in mine:
                    _apply_status(changes, self._state.attempts[status.attempt], status)
            if complete:
                gone_from = mine if launched is None else mine.intersection(launched)
                for gone in sorted(gone_from.difference(status.attempt for status in observed.attempts)):
                    found = self._state.attempts[gone]
                    if found.phase is not AttemptPhase.STARTING:
                        changes.apply(
                            found, requeue.lose_attempt(found.to_attempt_state(), requeue.PROCESSES_LOST)
                        )
            return changes.write()

        return await self._write(write)

    async def record_status(self, status: AttemptStatus, /, *, now: datetime) -> RecordResult:
        def write(conn: Connection) -> RecordResult:
            changes = self._begin_changes(conn, now)
            found = self._state.attempts.get(status.attempt)
            if found is not None:
                _apply_status(changes, found, status)
            return changes.write()

        return await self._write(write)

    async def replicas(self, attempt: AttemptId, /) -> AttemptStatus:
        def read(conn: Connection) -> AttemptStatus:
            text = conn.execute(_SELECT_REPLICAS.where(attempts.c.id == attempt)).scalar()
            if text is None:
                raise NotFound(f"there is no attempt {attempt}")
            return AttemptStatus(attempt, decode_replicas(text))

        return await self._database.read(read)

    async def fail_launch(
        self, attempt: AttemptId, reason: str, /, *, now: datetime, kind: ExitKind = ExitKind.LOST
    ) -> RecordResult:
        def write(conn: Connection) -> RecordResult:
            changes = self._begin_changes(conn, now)
            found = self._state.attempts.get(attempt)
            if found is not None:
                changes.apply(found, requeue.fail_launch(found.to_attempt_state(), reason, kind))
            return changes.write()

        return await self._write(write)

    async def request_stop(self, run: RunId, /, *, now: datetime) -> RecordResult:
        def write(conn: Connection) -> RecordResult:
            phase = _read_phase(conn, run)
            if phase.is_final:
                return RecordResult()
            changes = self._begin_changes(conn, now)
            if phase is RunPhase.QUEUED:
                return self._cancel_pending(conn, changes, run, to_us(now))
            if (name := _offline_name(conn, run)) is not None:
                raise no_process_conflict(name)
            conn.execute(update(runs).where(runs.c.id == run).values(stop_requested=True))
            attempt = self._state.attempt_of_run.get(run)
            if attempt is None:
                raise StateOutdated
            found = self._state.attempts[attempt]
            found.stop_requested = True
            conn.execute(_TOUCH_ATTEMPT.where(attempts.c.id == found.id).values(touched=changes.stamp.now))
            changes.stamp.touch("attempts", visible=False)
            if found.phase is not AttemptPhase.STOPPING:
                changes.apply(found, attempt_transitions.request_stop(found.to_attempt_state()))
            return changes.write()

        return await self._write(write)

    async def update_run(self, before: Run, after: Run, event: RunEvent, /) -> None:
        def write(conn: Connection) -> None:
            phase = _read_phase(conn, before.id)
            check_run_unchanged(conn, before, phase)
            visible = changes_scheduling(before, after)
            if visible and phase is not RunPhase.QUEUED:
                raise not_pending_conflict(before, phase)
            stamp = self._state.refresh(conn)
            write_run_update(conn, before, after, event, stamp.now if visible else None)
            if visible:
                self._holds.delete(conn, [before.id])
                self._state.mark_pending_changed()
                self._withdraw_promise(conn, before.id, stamp)
                stamp.touch("runs")
                stamp.write()

        await self._write(write)

    async def request_preempt(self, run: RunId, reason: str, /, *, now: datetime) -> RecordResult:
        def write(conn: Connection) -> RecordResult:
            _read_phase(conn, run)
            applying = PlanApplier(conn, self._state, self._holds, to_us(now))
            attempt = self._state.attempt_of_run.get(run)
            if attempt is None or self._state.attempts[attempt].phase is AttemptPhase.STOPPING:
                return RecordResult()
            return applying.request_preempt(attempt, reason).write()

        return await self._write(write)

    async def live_attempts(self) -> Mapping[AttemptId, str]:
        return await self._read_cache(self._snapshot_cache.live_attempts)

    # -- nodes -----------------------------------------------------------------------------------------------

    async def nodes(self) -> Sequence[Node]:
        return await self._read_cache(self._snapshot_cache.nodes)

    async def set_cordon(self, node: NodeId, on: bool, /, *, reason: str = "") -> Node:
        def write(conn: Connection) -> Node:
            stamp = self._state.refresh(conn)
            _check_node_exists(self._state.nodes, node)
            found = node_rows.set_cordon(conn, self._state.nodes, node, on, reason, clock=stamp.now)
            if found != self._state.nodes[node]:
                self._state.set_node(found)
                stamp.touch("nodes")
                stamp.write()
            return found

        return await self._write(write)

    async def record_server(self, server: ServerRecord, /) -> None:
        await self._database.write(lambda conn: server_rows.write_server(conn, server), vital=True)

    async def servers(self) -> Sequence[ServerRecord]:
        return await self._database.read(server_rows.list_servers)

    async def remove_node(self, node: NodeId, /) -> None:
        def write(conn: Connection) -> None:
            stamp = self._state.refresh(conn)
            _check_node_exists(self._state.nodes, node)
            if self._state.nodes[node].ready:
                raise Conflict(
                    f"node {node} is there",
                    hints=("its engine would tell of it again: end that first, or cordon it",),
                )
            if self._state.node_allocations.is_in_use(node):
                raise Conflict(f"a run holds resources of node {node}", hints=("stop it first: hop ps",))
            engine = self._state.nodes[node].engine
            node_rows.delete_node(conn, node)
            self._state.remove_node(node)
            if all(other.engine != engine for other in self._state.nodes.values()):
                server_rows.delete_server(conn, engine)
            stamp.touch("nodes")
            stamp.write()

        await self._write(write)

    # -- what they share -------------------------------------------------------------------------------------

    async def _read_cache(self, read: Callable[[], T]) -> T:
        """What the view tells of this moment. What this process wrote itself it knows, and only asks whether
        that is all."""
        marks = self._database.read_nowait(read_versions)
        told = None if marks is None else self._snapshot_cache.read_following(marks, read)
        return (
            await self._database.read(lambda conn: self._snapshot_cache.read_fresh(conn, read))
            if told is None
            else told
        )

    async def _write(self, write: Callable[[Connection], T], *, vital: bool = True) -> T:
        """Runs end and are stopped on a full disk as well; only new ones have to wait for space."""
        try:
            return await self._database.write(write, vital=vital)
        except StateOutdated:  # what it had in mind is forgotten with the transaction: now it is read anew
            return await self._database.write(write, vital=vital)

    def _begin_changes(self, conn: Connection, now: datetime) -> AttemptChanges:
        return AttemptChanges(conn, self._state, self._state.refresh(conn), to_us(now))

    def _write_observed_nodes(
        self, conn: Connection, changes: AttemptChanges, engine: str, observed: tuple[Node, ...]
    ) -> None:
        if self._state.reported_nodes.get(engine) == observed:
            return
        changed = node_rows.changed_nodes(self._state.nodes, engine, observed)
        if changed:
            node_rows.write_nodes(conn, self._state.nodes, changed, clock=changes.stamp.now)
            for node in changed:
                self._state.set_node(node)
            changes.stamp.touch("nodes")
        self._state.reported_nodes[engine] = observed

    def _cancel_pending(
        self, conn: Connection, changes: AttemptChanges, run: RunId, now: int
    ) -> RecordResult:
        """Take a run out of the queue."""
        ended = {"ended_at": now, "exit": encode_exit(attempt_transitions.CANCELLED_IN_QUEUE)}
        cancelled = str(checked_transition(RunPhase.QUEUED, RunPhase.CANCELLED))
        values = {"phase": cancelled, "stop_requested": True, "touched": changes.stamp.now, **ended}
        conn.execute(_CANCEL_RUN.where(runs.c.id == run).values(values))
        self._holds.delete(conn, [run])
        self._state.remove_pending(run)
        self._withdraw_promise(conn, run, changes.stamp)
        changes.stamp.touch("runs")
        changes.stamp.write()
        return RecordResult(changed=(run,))

    def _withdraw_promise(self, conn: Connection, run: RunId, stamp: WriteStamp) -> None:
        """What was promised to the run."""
        promises = {gang: one for gang, one in self._state.promises.items() if gang != GangId(run)}
        if replace_promises(conn, self._state.promises, promises):
            self._state.promises = promises
            stamp.touch("promises")


def _apply_status(changes: AttemptChanges, attempt: LiveAttempt, status: AttemptStatus) -> None:
    if status.replicas == attempt.last_unchanged_report or status.replicas == attempt.replicas:
        return
    after = attempt_transitions.apply_status(attempt.to_attempt_state(), status)
    if after is None:
        attempt.last_unchanged_report = status.replicas
    changes.apply(attempt, after)


def _read_phase(conn: Connection, run: RunId) -> RunPhase:
    phase = conn.execute(select(runs.c.phase).where(runs.c.id == run)).scalar()
    if phase is None:
        raise NotFound(f"no run has the id {run}")
    return RunPhase(phase)


def _check_node_exists(existing: Iterable[NodeId], node: NodeId) -> None:
    known = list(existing)
    if node not in known:
        close = close_names(node, known)
        raise NotFound(
            f"there is no node {node}",
            hints=tuple(f"did you mean `{name}`?" for name in close)
            or ("list the nodes with `hop node ls`",),
        )


def _offline_name(conn: Connection, run: RunId) -> str | None:
    """The name of a run that was recorded offline; None for others."""
    row = conn.execute(
        select(runs.c.user_name, runs.c.project, runs.c.number).where(runs.c.id == run, runs.c.offline)
    ).one_or_none()
    return None if row is None else str(RunName(*row))

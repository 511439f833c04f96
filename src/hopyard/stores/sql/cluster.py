"""The state of waiting and running gangs, in SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, select, update

from hopyard.domain import attempt_transitions, requeue
from hopyard.domain.attempt import AttemptPhase, AttemptStatus, ExitKind
from hopyard.domain.cluster import Node, Observation, PlanResult, ServerRecord, Snapshot
from hopyard.domain.ids import AttemptId, GangId, NodeId, RunId, RunName, Version
from hopyard.domain.plan_record import HoldRecord, PlanRecord
from hopyard.domain.replica import DEFAULT_STOP_ORDER, StopOrder
from hopyard.domain.run import Run, RunEvent, RunPhase, checked_transition, no_process_conflict
from hopyard.domain.run_change import changes_scheduling, not_holdable_conflict, not_pending_conflict
from hopyard.domain.suggest import close_names
from hopyard.errors import Conflict, NotFound
from hopyard.interfaces.cluster_store import Lease, RecordResult
from hopyard.stores.sql import node_rows, server_rows
from hopyard.stores.sql.apply_plan import PlanApplier
from hopyard.stores.sql.attempt_rows import AttemptChanges, StateOutdated
from hopyard.stores.sql.codec import (
    decode_replicas,
    decode_stop_order,
    encode_exit,
    encode_stop_order,
    to_us,
)
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.hold_rows import HoldChange, HoldRows
from hopyard.stores.sql.lease_rows import acquire_lease, check_epoch, release_lease
from hopyard.stores.sql.live_attempt_rows import IS_LIVE, LiveAttempt
from hopyard.stores.sql.promise_rows import replace_promises
from hopyard.stores.sql.run_update_rows import check_run_unchanged, write_run_update
from hopyard.stores.sql.snapshot_cache import SnapshotCache
from hopyard.stores.sql.tables import attempts, runs
from hopyard.stores.sql.versions import WriteStamp, read_versions
from hopyard.stores.sql.writer_state import WriterState

T = TypeVar("T")

HOLDS_PER_COMMIT = 2000
_SELECT_REPLICAS = select(attempts.c.replicas)
_SELECT_NAME = select(runs.c.user_name, runs.c.project, runs.c.number)
_SELECT_STOP_ORDER = select(attempts.c.stop_order)
_SELECT_STOP_ORDERS = select(attempts.c.id, attempts.c.stop_order).where(
    IS_LIVE, attempts.c.stop_order.is_not(None)
)
_TOUCH_ATTEMPT = update(attempts)
_CANCEL_RUN = update(runs).where(runs.c.phase == str(RunPhase.QUEUED))


class SqlClusterStore:
    """ClusterStore over a Database. One per Database: its caches are large."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._snapshot_cache = SnapshotCache(database.change_log)
        self._state = WriterState(database)
        self._holds = HoldRows(database)

    # -- leadership ------------------------------------------------------------------------------------------

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

    async def apply(self, plan: PlanRecord, /, *, now: datetime, epoch: int) -> PlanResult:
        def write(conn: Connection) -> PlanResult:
            check_epoch(conn, epoch)
            return PlanApplier(conn, self._state, self._holds, to_us(now)).apply(plan)

        return await self._write(write, vital=False)

    async def record_holds(
        self,
        holds: Sequence[HoldRecord],
        /,
        *,
        based_on: Version,
        now: datetime,  # noqa: ARG002
        epoch: int,
    ) -> Sequence[RunId]:
        # The holds may be computed lazily: neither requests nor other writes wait for that.
        planned = await asyncio.to_thread(list, holds)

        def compare(conn: Connection) -> list[HoldChange]:
            check_epoch(conn, epoch)
            return self._holds.find_changes(conn, planned, based_on=based_on, epoch=epoch)

        def write(conn: Connection, batch: Sequence[HoldChange]) -> list[RunId]:
            check_epoch(conn, epoch)
            return self._holds.write(conn, batch, based_on=based_on, epoch=epoch)

        changes = await self._database.write(compare)
        written: list[RunId] = []
        # in batches, so that a placement need not wait for all of them
        for begin in range(0, len(changes), HOLDS_PER_COMMIT):
            written += await self._database.write(
                partial(write, batch=changes[begin : begin + HOLDS_PER_COMMIT])
            )
        return written

    # -- reports ---------------------------------------------------------------------------------------------

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
            engine_attempts = self._state.attempts_of_engine.get(engine, set())
            for status in observed.attempts:
                if status.attempt in engine_attempts:
                    _apply_status(changes, self._state.attempts[status.attempt], status)
            if complete:
                expected = engine_attempts if launched is None else engine_attempts.intersection(launched)
                for missing in sorted(expected.difference(status.attempt for status in observed.attempts)):
                    attempt = self._state.attempts[missing]
                    if attempt.phase is not AttemptPhase.STARTING:
                        changes.apply(
                            attempt,
                            requeue.lose_attempt(attempt.to_attempt_state(), requeue.PROCESSES_LOST),
                        )
            return changes.write()

        return await self._write(write)

    async def record_status(self, status: AttemptStatus, /, *, now: datetime) -> RecordResult:
        def write(conn: Connection) -> RecordResult:
            changes = self._begin_changes(conn, now)
            attempt = self._state.attempts.get(status.attempt)
            if attempt is not None:
                _apply_status(changes, attempt, status)
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
            live_attempt = self._state.attempts.get(attempt)
            if live_attempt is not None:
                changes.apply(
                    live_attempt, requeue.fail_launch(live_attempt.to_attempt_state(), reason, kind)
                )
            return changes.write()

        return await self._write(write)

    async def request_stop(
        self, run: RunId, order: StopOrder = DEFAULT_STOP_ORDER, /, *, now: datetime
    ) -> RecordResult:
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
            live_attempt = self._state.attempts[attempt]
            live_attempt.stop_requested = True
            earlier = decode_stop_order(
                conn.execute(_SELECT_STOP_ORDER.where(attempts.c.id == live_attempt.id)).scalar()
            )
            merged = order if earlier is None else earlier.merged_with(order)
            touched = _TOUCH_ATTEMPT.where(attempts.c.id == live_attempt.id)
            conn.execute(touched.values(touched=changes.stamp.now, stop_order=encode_stop_order(merged)))
            changes.stamp.touch("attempts", visible=False)
            if live_attempt.phase is not AttemptPhase.STOPPING:
                changes.apply(live_attempt, attempt_transitions.request_stop(live_attempt.to_attempt_state()))
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
            applier = PlanApplier(conn, self._state, self._holds, to_us(now))
            attempt = self._state.attempt_of_run.get(run)
            if attempt is None or self._state.attempts[attempt].phase is AttemptPhase.STOPPING:
                return RecordResult()
            return applier.request_preempt(attempt, reason).write()

        return await self._write(write)

    async def hold_and_preempt(self, run: RunId, user: str, reason: str, /, *, now: datetime) -> RecordResult:
        def write(conn: Connection) -> RecordResult:
            phase = _read_phase(conn, run)
            applier = PlanApplier(conn, self._state, self._holds, to_us(now))
            attempt = self._state.attempt_of_run.get(run)
            if attempt is None or self._state.attempts[attempt].stop_requested:
                row = conn.execute(_SELECT_NAME.where(runs.c.id == run)).one()
                raise not_holdable_conflict(str(RunName(*row)), phase)
            conn.execute(update(runs).where(runs.c.id == run).values(held_by=user))
            if self._state.attempts[attempt].phase is AttemptPhase.STOPPING:
                return RecordResult()
            return applier.request_preempt(attempt, reason).write()

        return await self._write(write)

    async def withdraw_hold(self, run: RunId, /) -> bool:
        def write(conn: Connection) -> bool:
            phase = _read_phase(conn, run)
            if phase is RunPhase.QUEUED or phase.is_final:
                return False
            held = update(runs).where(runs.c.id == run, runs.c.held_by.is_not(None))
            return conn.execute(held.values(held_by=None)).rowcount > 0

        return await self._database.write(write)

    async def live_attempts(self) -> Mapping[AttemptId, str]:
        return await self._read_cache(self._snapshot_cache.live_attempts)

    async def stop_orders(self) -> Mapping[AttemptId, StopOrder]:
        def read(conn: Connection) -> Mapping[AttemptId, StopOrder]:
            rows = conn.execute(_SELECT_STOP_ORDERS)
            return {AttemptId(id_): order for id_, text in rows if (order := decode_stop_order(text))}

        return await self._database.read(read)

    # -- nodes -----------------------------------------------------------------------------------------------

    async def nodes(self) -> Sequence[Node]:
        return await self._read_cache(self._snapshot_cache.nodes)

    async def set_cordon(self, node: NodeId, on: bool, /, *, reason: str = "") -> Node:
        def write(conn: Connection) -> Node:
            stamp = self._state.refresh(conn)
            _check_node_exists(self._state.nodes, node)
            after = node_rows.set_cordon(conn, self._state.nodes, node, on, reason, clock=stamp.now)
            if after != self._state.nodes[node]:
                self._state.set_node(after)
                stamp.touch("nodes")
                stamp.write()
            return after

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
                    f"node {node} is still reported by its engine",
                    hints=("stop the engine first, or cordon the node",),
                )
            if self._state.node_allocations.is_in_use(node):
                raise Conflict(
                    f"node {node} is in use by a run", hints=("wait until the run has ended, or stop it",)
                )
            engine = self._state.nodes[node].engine
            node_rows.delete_node(conn, node)
            self._state.remove_node(node)
            if all(other.engine != engine for other in self._state.nodes.values()):
                server_rows.delete_server(conn, engine)
            stamp.touch("nodes")
            stamp.write()

        await self._write(write)

    # -- shared helpers --------------------------------------------------------------------------------------

    async def _read_cache(self, read: Callable[[], T]) -> T:
        """Returns a value from the snapshot cache, after it is updated. For changes of this process alone,
        checking the versions suffices."""
        versions = self._database.read_nowait(read_versions)
        cached = None if versions is None else self._snapshot_cache.read_following(versions, read)
        return (
            await self._database.read(lambda conn: self._snapshot_cache.read_fresh(conn, read))
            if cached is None
            else cached
        )

    async def _write(self, write: Callable[[Connection], T], *, vital: bool = True) -> T:
        """Writes with the disk reserve by default: runs end and are stopped even on a full disk; only new
        runs wait for space."""
        try:
            return await self._database.write(write, vital=vital)
        except StateOutdated:  # the transaction also reset the state: now it is read again
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
        """Cancels a waiting run."""
        end_values = {"ended_at": now, "exit": encode_exit(attempt_transitions.CANCELLED_IN_QUEUE)}
        cancelled = str(checked_transition(RunPhase.QUEUED, RunPhase.CANCELLED))
        values = {"phase": cancelled, "stop_requested": True, "touched": changes.stamp.now, **end_values}
        conn.execute(_CANCEL_RUN.where(runs.c.id == run).values(values))
        self._holds.delete(conn, [run])
        self._state.remove_pending(run)
        self._withdraw_promise(conn, run, changes.stamp)
        changes.stamp.touch("runs")
        changes.stamp.write()
        return RecordResult(changed=(run,))

    def _withdraw_promise(self, conn: Connection, run: RunId, stamp: WriteStamp) -> None:
        """Withdraws the promise to the run."""
        promises = {gang: promise for gang, promise in self._state.promises.items() if gang != GangId(run)}
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
    names = list(existing)
    if node not in names:
        matches = close_names(node, names)
        raise NotFound(
            f"there is no node {node}",
            hints=tuple(f"did you mean `{name}`?" for name in matches)
            or ("list the nodes with `hop node ls`",),
        )


def _offline_name(conn: Connection, run: RunId) -> str | None:
    """Returns the name of a run that was recorded offline; None for other runs."""
    row = conn.execute(_SELECT_NAME.where(runs.c.id == run, runs.c.offline)).one_or_none()
    return None if row is None else str(RunName(*row))

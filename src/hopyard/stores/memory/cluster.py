"""The state of waiting and running gangs, in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from hopyard.domain import attempt_transitions, requeue
from hopyard.domain.attempt import AttemptPhase, AttemptStatus, ExitKind
from hopyard.domain.cluster import Node, Observation, PlanResult, ServerRecord, Snapshot
from hopyard.domain.ids import AttemptId, GangId, NodeId, RunId, Version
from hopyard.domain.plan_record import HoldRecord, PlanRecord
from hopyard.domain.replica import DEFAULT_STOP_ORDER, StopOrder
from hopyard.domain.run import Run, RunEvent, RunPhase, no_process_conflict
from hopyard.domain.run_change import (
    changes_scheduling,
    concurrent_change_conflict,
    not_holdable_conflict,
    not_pending_conflict,
)
from hopyard.errors import NotFound, NotLeader
from hopyard.interfaces.cluster_store import Lease, RecordResult
from hopyard.stores.memory.apply_plan import PlanApplier
from hopyard.stores.memory.attempt_changes import AttemptChanges
from hopyard.stores.memory.nodes import MemoryNodes
from hopyard.stores.memory.rows import RunRow
from hopyard.stores.memory.state import MemoryState, run_of_attempt


class MemoryClusterStore:
    """Implements `hopyard.interfaces.cluster_store.ClusterStore`. No call ever waits, so each is one atomic
    step."""

    def __init__(self, state: MemoryState) -> None:
        self._state, self._nodes = state, MemoryNodes(state)

    # -- leadership ------------------------------------------------------------------------------------------

    async def acquire_lease(self, holder: str, /, *, now: datetime, ttl: timedelta) -> Lease | None:
        state, lease = self._state, self._state.lease
        if lease is not None and lease.holder != holder and now < lease.expires_at <= now + 2 * ttl:
            return None
        if lease is None or lease.holder != holder:
            state.epoch += 1
        state.lease = Lease(holder, state.epoch, now + ttl)
        return state.lease

    async def release_lease(self, holder: str, /) -> None:
        if self._state.lease is not None and self._state.lease.holder == holder:
            self._state.lease = None

    def _check_leader(self, epoch: int) -> None:
        if self._state.lease is None or self._state.lease.epoch != epoch:
            raise NotLeader("another server is the leader now")

    # -- plans -----------------------------------------------------------------------------------------------

    async def version(self) -> Version:
        return Version(self._state.version)

    async def snapshot(self, *, now: datetime) -> Snapshot:
        return self._state.snapshot(now)

    async def apply(self, plan: PlanRecord, /, *, now: datetime, epoch: int) -> PlanResult:
        self._check_leader(epoch)
        return PlanApplier(self._state, now).apply(plan)

    async def record_holds(
        self,
        holds: Sequence[HoldRecord],
        /,
        *,
        based_on: Version,
        now: datetime,  # noqa: ARG002
        epoch: int,
    ) -> Sequence[RunId]:
        self._check_leader(epoch)
        state, before = self._state, self._state.holds()
        state.record_holds(holds, based_on)
        return [
            RunId(hold.gang)
            for hold in holds
            if state.is_pending_unchanged(hold.gang, based_on) and _is_other_hold(before.get(hold.gang), hold)
        ]

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
        changes = AttemptChanges(self._state, now)
        if complete and self._nodes.apply_observed(engine, observed.nodes):
            changes.changes_snapshot = True
        statuses = {status.attempt: status for status in observed.attempts}
        attempts: Iterable[AttemptId] = (
            sorted(self._state.live_attempts)
            if complete
            else [attempt for attempt in statuses if attempt in self._state.live_attempts]
        )
        for attempt in attempts:
            run = self._state.live_run(attempt)
            if run is None or run.attempts[-1].engine != engine:
                continue
            if attempt in statuses:
                if statuses[attempt].replicas != run.attempts[-1].replicas:
                    changes.apply(
                        run, attempt_transitions.apply_status(changes.attempt_state(run), statuses[attempt])
                    )
            elif (
                complete
                and run.attempts[-1].phase is not AttemptPhase.STARTING
                and (launched is None or attempt in launched)
            ):
                changes.apply(run, requeue.lose_attempt(changes.attempt_state(run), requeue.PROCESSES_LOST))
        return changes.to_result()

    async def record_status(self, status: AttemptStatus, /, *, now: datetime) -> RecordResult:
        run = self._state.live_run(status.attempt)
        if run is None:
            return RecordResult()
        changes = AttemptChanges(self._state, now)
        changes.apply(run, attempt_transitions.apply_status(changes.attempt_state(run), status))
        return changes.to_result()

    async def replicas(self, attempt: AttemptId, /) -> AttemptStatus:
        run = self._state.runs.get(run_of_attempt(attempt))
        for row in () if run is None else run.attempts:
            if row.id == attempt:
                return AttemptStatus(attempt, row.replicas)
        raise NotFound(f"there is no attempt {attempt}")

    async def fail_launch(
        self, attempt: AttemptId, reason: str, /, *, now: datetime, kind: ExitKind = ExitKind.LOST
    ) -> RecordResult:
        run = self._state.live_run(attempt)
        if run is None:
            return RecordResult()
        changes = AttemptChanges(self._state, now)
        changes.apply(run, requeue.fail_launch(changes.attempt_state(run), reason, kind))
        return changes.to_result()

    async def request_stop(
        self, run: RunId, order: StopOrder = DEFAULT_STOP_ORDER, /, *, now: datetime
    ) -> RecordResult:
        row = self._get_row(run)
        if row.phase.is_final:
            return RecordResult()
        if row.offline:
            raise no_process_conflict(str(row.name))
        row.stop_requested = True
        if row.phase is RunPhase.QUEUED:
            row.set_phase(RunPhase.CANCELLED)
            row.ended_at, row.exit = now, attempt_transitions.CANCELLED_IN_QUEUE
            self._state.remove_pending(row.gang.id)
            self._state.mark_changed()
            return RecordResult(changed=(run,))
        changes = AttemptChanges(self._state, now)
        earlier = row.attempts[-1].stop_order
        row.attempts[-1].stop_order = order if earlier is None else earlier.merged_with(order)
        if row.attempts[-1].phase is not AttemptPhase.STOPPING:
            changes.apply(row, attempt_transitions.request_stop(changes.attempt_state(row)))
        return changes.to_result()

    async def update_run(self, before: Run, after: Run, event: RunEvent, /) -> None:
        row, state = self._get_row(before.id), self._state
        held_by = row.held_by if row.phase is RunPhase.QUEUED else None
        current = (row.spec, held_by, row.note, row.archived)
        if current != (before.spec, before.held_by, before.note, before.archived):
            raise concurrent_change_conflict(before)
        if changes_scheduling(before, after):
            if row.phase is not RunPhase.QUEUED:
                raise not_pending_conflict(before, row.phase)
            gang = after.spec.to_gang(
                row.id, row.name.user, submitted_at=row.submitted_at, served_s=row.gang.served_s
            )
            previous = row.gang  # keeps the backoff and the count of preemptions
            row.gang = replace(
                gang,
                roles=state.share_roles(gang.roles),
                preemptions=previous.preemptions,
                not_before=previous.not_before,
                requeue_reason=previous.requeue_reason,
            )
            row.changed_at_version = True
            state.remove_pending(row.gang.id)
            state.remove_hold(row.gang.id)
            if after.held_by is None:
                state.add_pending(row.gang)
            state.mark_changed()
            row.held_by = after.held_by
        row.spec, row.note, row.archived = after.spec, after.note, after.archived
        row.events.append(event)

    async def request_preempt(self, run: RunId, reason: str, /, *, now: datetime) -> RecordResult:
        row = self._get_row(run)
        if (
            row.attempt is None
            or row.attempt.id not in self._state.live_attempts
            or row.attempt.phase is AttemptPhase.STOPPING
        ):
            return RecordResult()
        return PlanApplier(self._state, now).request_preempt(row, GangId(""), reason)

    async def hold_and_preempt(self, run: RunId, user: str, reason: str, /, *, now: datetime) -> RecordResult:
        row = self._get_row(run)
        if row.attempt is None or row.attempt.id not in self._state.live_attempts or row.stop_requested:
            raise not_holdable_conflict(str(row.name), row.phase)
        row.held_by = user
        if row.attempt.phase is AttemptPhase.STOPPING:
            return RecordResult()
        return PlanApplier(self._state, now).request_preempt(row, GangId(""), reason)

    async def withdraw_hold(self, run: RunId, /) -> bool:
        row = self._get_row(run)
        if row.held_by is None or row.attempt is None or row.attempt.id not in self._state.live_attempts:
            return False
        row.held_by = None
        return True

    async def live_attempts(self) -> Mapping[AttemptId, str]:
        return dict(self._state.live_attempts)

    async def stop_orders(self) -> Mapping[AttemptId, StopOrder]:
        rows = (self._state.live_run(attempt) for attempt in self._state.live_attempts)
        attempts = (row.attempts[-1] for row in rows if row is not None)
        return {attempt.id: attempt.stop_order for attempt in attempts if attempt.stop_order is not None}

    # -- nodes -----------------------------------------------------------------------------------------------

    async def nodes(self) -> Sequence[Node]:
        return list(self._state.cached_nodes.get().values())

    async def set_cordon(self, node: NodeId, on: bool, /, *, reason: str = "") -> Node:
        return self._nodes.set_cordon(node, on, reason=reason)

    async def record_server(self, server: ServerRecord, /) -> None:
        self._state.servers[server.engine] = server

    async def servers(self) -> Sequence[ServerRecord]:
        return [self._state.servers[engine] for engine in sorted(self._state.servers)]

    async def remove_node(self, node: NodeId, /) -> None:
        removed = self._state.nodes.get(node)
        self._nodes.remove(node)
        if removed is not None and all(
            other.engine != removed.engine for other in self._state.nodes.values()
        ):
            self._state.servers.pop(removed.engine, None)

    # -- rows ------------------------------------------------------------------------------------------------

    def _get_row(self, run: RunId) -> RunRow:
        row = self._state.runs.get(run)
        if row is None:
            raise NotFound(f"no run has the id {run}")
        return row


def _is_other_hold(before: HoldRecord | None, after: HoldRecord) -> bool:
    """Returns whether the hold changed, ignoring the position."""
    return before is None or (before.reason, before.detail, before.blocked_by, before.expected_at) != (
        after.reason,
        after.detail,
        after.blocked_by,
        after.expected_at,
    )

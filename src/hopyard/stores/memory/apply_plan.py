"""Commits a plan in memory: each gang is checked again against the current state."""

from __future__ import annotations

from datetime import datetime

from hopyard.domain import attempt_transitions
from hopyard.domain.amounts import placed_amounts
from hopyard.domain.attempt import AttemptPhase
from hopyard.domain.cluster import PlanResult
from hopyard.domain.gang import CHANGED_AFTER_PLANNING, Gang, Placement, differs_from_plan
from hopyard.domain.ids import GangId, RunId, Version, attempt_id
from hopyard.domain.plan_record import PlanRecord, PreemptionRecord
from hopyard.domain.run import RunEvent, RunEventKind, RunPhase
from hopyard.interfaces.cluster_store import RecordResult
from hopyard.stores.memory.attempt_changes import AttemptChanges
from hopyard.stores.memory.rows import AttemptRow, RunRow
from hopyard.stores.memory.state import MemoryState

_CHANGED_AFTER_PLANNING = "reservations or queues were changed after the plan was made"


class PlanApplier:
    """Applies one plan at `now`. The caller has checked the lease."""

    def __init__(self, state: MemoryState, now: datetime) -> None:
        self._state, self._now = state, now
        self._started: list[AttemptRow] = []

    def apply(self, plan: PlanRecord) -> PlanResult:
        state = self._state
        if state.declaration_version > plan.based_on:
            return PlanResult(
                (),
                {placement.gang.id: _CHANGED_AFTER_PLANNING for placement in plan.place},
                Version(state.version),
            )
        rejected: dict[GangId, str] = {}
        for placement in plan.place:
            reason = self._start_run(placement)
            if reason is not None:
                rejected[placement.gang.id] = reason
        preempted = tuple(
            preemption.attempt for preemption in plan.preempt if self._preempt_run(preemption, plan.based_on)
        )
        self._replace_promises(plan)
        if self._started or preempted:
            state.mark_changed()
        applied = tuple(row.placement.gang.id for row in self._started)
        return PlanResult(
            applied, rejected, Version(state.version), tuple(row.id for row in self._started), preempted
        )

    def request_preempt(self, run: RunRow, for_gang: GangId, reason: str) -> RecordResult:
        """Requests the run's live attempt to save a checkpoint and stop."""
        changes = AttemptChanges(self._state, self._now)
        run.attempts[-1].preempted_for, run.attempts[-1].preempt_reason = for_gang, reason
        changes.apply(run, attempt_transitions.request_stop(changes.attempt_state(run)))
        run.events.append(RunEvent(self._now, RunEventKind.PREEMPTED, reason))
        return changes.to_result()

    def _start_run(self, planned_placement: Placement) -> str | None:
        """Starts a run. Returns the reason if it cannot start now, else None."""
        state = self._state
        gang = state.pending.get(planned_placement.gang.id)
        if gang is None:
            return "it no longer waits"
        if state.runs[RunId(gang.id)].changed_at_version and differs_from_plan(planned_placement.gang, gang):
            return CHANGED_AFTER_PLANNING
        placement = Placement(
            gang.with_replica_counts(_replica_counts(gang, planned_placement.gang)),
            planned_placement.assignments,
        )
        reason = state.node_allocations.allocate(placement)
        if reason is not None:
            return reason
        amounts = placed_amounts(placement, state.nodes)
        reason = state.quota_check.find_violation(gang.queue, gang.user, amounts)
        if reason is not None:
            state.node_allocations.count(placement, -1)
            return reason
        state.quota_check.charge(gang.queue, gang.user, amounts)
        run = state.runs[RunId(gang.id)]
        number = len(run.attempts) + 1
        checkpoints = run.usable_checkpoints()
        step = (
            checkpoints[-1].step
            if checkpoints
            else run.spec.resume.step
            if run.spec.resume is not None
            else None
        )
        engine = state.nodes[placement.assignments[0].node].engine
        row = AttemptRow(
            attempt_id(run.id, number), number, placement, amounts, engine, self._now, resumed_from_step=step
        )
        run.set_phase(RunPhase.STARTING)
        run.attempts.append(row)
        state.remove_pending(gang.id)
        state.add_running(row)
        self._started.append(row)
        return None

    def _preempt_run(self, preemption: PreemptionRecord, based_on: Version) -> bool:
        """Requests a preemption. Returns False if the attempt is not live, is stopping, or is not
        preemptible, or if the gang no longer waits as planned."""
        run = self._state.live_run(preemption.attempt)
        if preemption.for_gang and not self._state.is_pending_unchanged(preemption.for_gang, based_on):
            return False
        if run is None or run.attempts[-1].phase is AttemptPhase.STOPPING or not run.gang.preemptible:
            return False
        self.request_preempt(run, preemption.for_gang, preemption.reason)
        return True

    def _replace_promises(self, plan: PlanRecord) -> None:
        state = self._state
        valid = [
            promise
            for promise in plan.promises
            if promise.gang in state.promises or state.is_pending_unchanged(promise.gang, plan.based_on)
        ]
        promises = {promise.gang: promise for promise in valid if state.is_pending(promise.gang)}
        broken = {breach.gang for breach in plan.breaches}
        for breach in plan.breaches:
            if state.is_pending_unchanged(breach.gang, plan.based_on):
                self._record_event(breach.gang, RunEventKind.BREACHED, f"{breach.cause}: {breach.detail}")
        for gang, promise in promises.items():
            if gang not in state.promises or gang in broken:
                self._record_event(
                    gang,
                    RunEventKind.PROMISED,
                    f"starts at {promise.start_at:%Y-%m-%d %H:%M:%S} UTC or earlier",
                )
        if promises != state.promises:
            state.promises = promises
            state.cached_promises.invalidate()
            state.mark_changed()

    def _record_event(self, gang: GangId, kind: RunEventKind, detail: str) -> None:
        self._state.runs[RunId(gang)].events.append(RunEvent(self._now, kind, detail))


def _replica_counts(gang: Gang, planned: Gang) -> list[int]:
    """Returns the number of replicas of each role to start: the planned number if the gang is elastic, else
    the requested number."""
    if len(planned.roles) != len(gang.roles):
        return [role.replicas for role in gang.roles]
    pairs = zip(gang.roles, planned.roles, strict=True)
    return [
        min(max(planned_role.replicas, role.required_replicas), role.replicas) for role, planned_role in pairs
    ]

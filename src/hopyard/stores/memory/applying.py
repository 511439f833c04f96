"""Committing a plan in memory: each gang is checked once more against the truth of this moment."""

from __future__ import annotations

from datetime import datetime

from hopyard.domain import attempt_news
from hopyard.domain.amounts import placed
from hopyard.domain.attempt import AttemptPhase
from hopyard.domain.cluster import Plan, PlanResult, Preemption
from hopyard.domain.gang import CHANGED_SINCE, Gang, Placement, is_other
from hopyard.domain.ids import GangId, RunId, Version, attempt_id
from hopyard.domain.run import RunEvent, RunEventKind, RunPhase
from hopyard.interfaces.cluster_store import Recorded
from hopyard.stores.memory.changes import Changes
from hopyard.stores.memory.rows import AttemptRow, RunRow
from hopyard.stores.memory.state import State

_CHANGED = "reservations or queues were changed after this was planned"


class Applying:
    """One plan, at `now`. The lease was looked at before."""

    def __init__(self, state: State, now: datetime) -> None:
        self._state, self._now = state, now
        self._started: list[AttemptRow] = []

    def apply(self, plan: Plan) -> PlanResult:
        state = self._state
        if state.declared_at > plan.based_on:
            return PlanResult(
                (), {placement.gang.id: _CHANGED for placement in plan.place}, Version(state.version)
            )
        rejected: dict[GangId, str] = {}
        for placement in plan.place:
            reason = self._start(placement)
            if reason is not None:
                rejected[placement.gang.id] = reason
        preempted = tuple(one.attempt for one in plan.preempt if self._preempt(one, plan.based_on))
        self._promise(plan)
        if self._started or preempted:
            state.changed()
        applied = tuple(row.placement.gang.id for row in self._started)
        return PlanResult(
            applied, rejected, Version(state.version), tuple(row.id for row in self._started), preempted
        )

    def make_room(self, run: RunRow, for_gang: GangId, reason: str) -> Recorded:
        """Ask the run's live attempt to save and leave."""
        changes = Changes(self._state, self._now)
        run.attempts[-1].preempted_for, run.attempts[-1].preempt_reason = for_gang, reason
        changes.make(run, attempt_news.stop(changes.before(run)))
        run.events.append(RunEvent(self._now, RunEventKind.PREEMPTED, reason))
        return changes.finish()

    def _start(self, asked: Placement) -> str | None:
        """Why it may not start now; None when it did."""
        state = self._state
        gang = state.pending.get(asked.gang.id)
        if gang is None:
            return "it no longer waits"
        if state.runs[RunId(gang.id)].changed and is_other(asked.gang, gang):
            return CHANGED_SINCE
        placement = Placement(gang.sized(_counts(gang, asked.gang)), asked.assignments)
        reason = state.holdings.take(placement)
        if reason is not None:
            return reason
        amounts = placed(placement, state.nodes)
        reason = state.charges.refusal(gang.queue, gang.user, amounts)
        if reason is not None:
            state.holdings.hold(placement, -1)
            return reason
        state.charges.charge(gang.queue, gang.user, amounts)
        run = state.runs[RunId(gang.id)]
        number = len(run.attempts) + 1
        whole = run.whole_checkpoints()
        step = whole[-1].step if whole else run.spec.resume.step if run.spec.resume is not None else None
        engine = state.nodes[placement.assignments[0].node].engine
        row = AttemptRow(
            attempt_id(run.id, number), number, placement, amounts, engine, self._now, resumed_from_step=step
        )
        run.move(RunPhase.STARTING)
        run.attempts.append(row)
        state.wait_no_more(gang.id)
        state.show_running(row)
        self._started.append(row)
        return None

    def _preempt(self, wanted: Preemption, based_on: Version) -> bool:
        """Whether the attempt is asked to make room: it lives, is not stopping, its run allows it, and the
        gang still waits as planned."""
        run = self._state.live_run(wanted.attempt)
        if wanted.for_gang and not self._state.waits_unchanged(wanted.for_gang, based_on):
            return False
        if run is None or run.attempts[-1].phase is AttemptPhase.STOPPING or not run.gang.preemptible:
            return False
        self.make_room(run, wanted.for_gang, wanted.reason)
        return True

    def _promise(self, plan: Plan) -> None:
        state = self._state
        standing = [
            one
            for one in plan.promises
            if one.gang in state.promises or state.waits_unchanged(one.gang, plan.based_on)
        ]
        after = {one.gang: one for one in standing if state.waits(one.gang)}
        broken = {breach.gang for breach in plan.breaches}
        for breach in plan.breaches:
            if state.waits_unchanged(breach.gang, plan.based_on):
                self._tell(breach.gang, RunEventKind.BREACHED, f"{breach.cause}: {breach.detail}")
        for gang, promise in after.items():
            if gang not in state.promises or gang in broken:
                self._tell(
                    gang,
                    RunEventKind.PROMISED,
                    f"starts at {promise.start_at:%Y-%m-%d %H:%M:%S} UTC or earlier",
                )
        if after != state.promises:
            state.promises = after
            state.seen_promises.stale()
            state.changed()

    def _tell(self, gang: GangId, kind: RunEventKind, detail: str) -> None:
        self._state.runs[RunId(gang)].events.append(RunEvent(self._now, kind, detail))


def _counts(gang: Gang, planned: Gang) -> list[int]:
    """How many replicas of each role are to start: what the plan says where the gang leaves a choice, else
    what it asks for."""
    if len(planned.roles) != len(gang.roles):
        return [role.replicas for role in gang.roles]
    pairs = zip(gang.roles, planned.roles, strict=True)
    return [min(max(wanted.replicas, role.fewest), role.replicas) for role, wanted in pairs]

"""Explains why a promise cannot be kept: finds the runs, promises or nodes that changed since and decide
it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple

from hopyard.domain.breach_causes import (
    ActiveReservation,
    GangEstimateUpdate,
    NodeCapacityReduced,
    NodeUnavailable,
    QuotaReduced,
    ReservationConflict,
    ReservationGranted,
    RootBreachDetail,
    RunEstimateUpdate,
    RunOverrun,
)
from hopyard.domain.cluster import Breach, Promise
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId
from hopyard.scheduler.duration_estimates import MAX_DURATION_S
from hopyard.scheduler.timeline.availability import Availability
from hopyard.scheduler.timeline.earliest_start import PROMISE_SCORE
from hopyard.scheduler.timeline.promised_slots import TIME_TOLERANCE_S, PromisedSlot
from hopyard.scheduler.timeline.run_end_estimates import RunEnd

# returns why the first gang, which holds or will hold the resources, comes before the second
PrecedenceRule = Callable[[Placement, Gang], RootBreachDetail]
# promises of one cycle have slightly different times, after the starts of that cycle
CYCLE_TOLERANCE = timedelta(milliseconds=1)


class BreachFinding(NamedTuple):
    """preceding_gang: the gang that comes before it."""

    detail: RootBreachDetail
    preceding_gang: GangId | None = None


def explain_breach(
    availability: Availability,
    gang: Gang,
    previous: Promise,
    replacement: Promise | None,
    rule: PrecedenceRule,
) -> Breach | None:
    """Returns why the promise is broken, or None if it is kept. replacement: the new promise of the gang, or
    None. rule: returns why another gang comes first."""
    if replacement is not None and replacement.start_at <= previous.start_at:
        return None
    finding = _find_cause(availability, gang, previous, rule)
    slot = availability.slots.get(previous.gang)
    expected_at = availability.now + timedelta(seconds=slot.expected_start_s) if slot is not None else None
    return Breach(previous.gang, finding.detail, previous.start_at, expected_at, finding.preceding_gang)


def _find_cause(
    availability: Availability, gang: Gang, previous: Promise, rule: PrecedenceRule
) -> BreachFinding:
    for name in previous.nodes:
        node = availability.capacity.get_node(name)
        if node is None or not node.schedulable:
            state = "" if node is None or not node.ready else node.unschedulable_state
            return BreachFinding(NodeUnavailable(name, state))
    expected, pessimistic = (
        _Occupants(availability, gang, previous, rule, pessimistic=is_pessimistic)
        for is_pessimistic in (False, True)
    )
    for occupants in (expected, pessimistic):
        if not occupants.has_room_without():
            return occupants.find_cause()
    return _cause_despite_room(availability, expected, previous)


def _cause_despite_room(
    availability: Availability, occupants: _Occupants, previous: Promise
) -> BreachFinding:
    """Explains a breach although the gang fits at that time: the capacity is reserved, quota forbids it, or
    it is not free for long enough."""
    gang, due_s = occupants.gang, occupants.promised_s
    until_s = due_s + occupants.duration_s
    conflicts = [
        window
        for window in availability.conflicting_windows(gang, until_s)
        if window.until_s > due_s and not {*previous.nodes}.isdisjoint(window.reservation.nodes)
    ]
    for window in conflicts:
        if window.reservation.created_at is not None and window.reservation.created_at > previous.given_at:
            return BreachFinding(ReservationGranted(window.reservation.name))
    if _is_quota_refused(availability, occupants, until_s):
        return BreachFinding(QuotaReduced())
    if conflicts:
        name = conflicts[0].reservation.name
        if conflicts[0].from_s <= due_s:
            return BreachFinding(ActiveReservation(name))
        return BreachFinding(ReservationConflict(name))
    return occupants.later_conflict(until_s)


def _is_quota_refused(availability: Availability, occupants: _Occupants, until_s: float) -> bool:
    """Returns whether quota refuses the gang, or these GPU models, at that time or while it would run."""
    gang, due_s = occupants.gang, occupants.promised_s
    usage = availability.quota_snapshots().state_at(due_s)
    for slot in availability.slots.values():
        if slot.promise.gang != gang.id and slot.is_present(due_s):
            usage.charge(slot.placement)
    usages = [
        usage,
        *availability.restricting_usages(gang, availability.overlapping_later(gang, due_s, until_s)),
    ]
    closed_models = frozenset(
        model for restricting_usage in usages for model in restricting_usage.closed_models(gang)
    )
    return any(
        restricting_usage.refusal(gang) for restricting_usage in usages
    ) or not occupants.has_room_without(closed_models=closed_models)


class _Occupants:
    """Runs and promises on the nodes of the promise at the promised time.

    pessimistic: runs end at the upper end of their estimates, which is what promises assume.

    _overdue: runs that were expected to end by then, when the promise was given or they were placed.
    _placed_since: runs that started after the promise. _placed_before: older runs whose estimates have
    changed. _concurrent: runs that started in the cycle of the promise. slots: other promised gangs.
    """

    def __init__(
        self,
        availability: Availability,
        gang: Gang,
        previous: Promise,
        rule: PrecedenceRule,
        *,
        pessimistic: bool,
    ) -> None:
        self._availability, self._previous, self._rule, self._pessimistic = (
            availability,
            previous,
            rule,
            pessimistic,
        )
        self.gang = gang.with_replica_counts([role.required_replicas for role in gang.roles])
        slot = availability.slots.get(previous.gang)
        self.duration_s = MAX_DURATION_S if slot is None else slot.expected_end_s - slot.expected_start_s
        self._planned_s = (previous.start_at - availability.now).total_seconds()
        self.promised_s = max(self._planned_s, 0.0)
        ends = sorted(
            (end.high_s if pessimistic else end.mid_s, end.gang, end)
            for end in availability.ends_on(previous.nodes)
        )
        ending_later = [end for at_s, _, end in ends if at_s > self.promised_s]
        self._overdue = [end for end in ending_later if self._was_expected_to_end(end)]
        not_overdue = [end for end in ending_later if end not in self._overdue]
        self._placed_since = [
            end
            for end in not_overdue
            if end.gang in availability.started
            or availability.run_ends.placed_since(end.gang, previous.given_at)
        ]
        placed_earlier = [end for end in not_overdue if end not in self._placed_since]
        self._placed_before = [end for end in placed_earlier if not end.is_limit]
        self._concurrent = [
            end
            for end in placed_earlier
            if availability.run_ends.placed_since(end.gang, previous.given_at - CYCLE_TOLERANCE)
        ]
        self.slots = [
            slot
            for slot in availability.slots.values()
            if slot.promise.gang != previous.gang and not {*previous.nodes}.isdisjoint(slot.promise.nodes)
        ]

    def find_cause(self) -> BreachFinding:
        """Returns why the gang does not fit."""
        if self._overdue and self.has_room_without(self._overdue):
            return self._overrun_finding(self._overdue)
        if (self._placed_since or self.slots) and self.has_room_without(self._placed_since, self.slots):
            return self._preceding_finding()
        if self.has_room_without([*self._overdue, *self._placed_since], self.slots):
            return self._overrun_finding(self._overdue)
        if self._placed_before and self.has_room_without(
            [*self._overdue, *self._placed_since, *self._placed_before], self.slots
        ):
            # Either the history of such runs changed, or the node lost capacity: earlier estimates are not
            # stored.
            return BreachFinding(RunEstimateUpdate(self._last_decisive(self._placed_before).gang))
        if self._concurrent and self.has_room_without(
            [*self._overdue, *self._placed_since, *self._concurrent], self.slots
        ):
            return self._precedence_finding(self._concurrent[-1].placement)
        return BreachFinding(NodeCapacityReduced(self._previous.nodes))

    def _overrun_finding(self, runs: Sequence[RunEnd]) -> BreachFinding:
        return BreachFinding(RunOverrun(self._last_decisive(runs).gang))

    def _last_decisive(self, runs: Sequence[RunEnd]) -> RunEnd:
        """Returns the last of these runs without which the gang would fit if the others had ended; the last
        run if there is none."""
        others = [*self._overdue, *self._placed_since, *self._placed_before]
        decisive = [
            run
            for run in runs
            if not self.has_room_without([end for end in others if end is not run], self.slots)
        ]
        return (decisive or runs)[-1]

    def _precedence_finding(self, other: Placement) -> BreachFinding:
        return BreachFinding(self._rule(other, self.gang), other.gang.id)

    def later_conflict(self, until_s: float) -> BreachFinding:
        """Explains a breach if the capacity is not free for long enough: another gang was promised a start on
        these nodes meanwhile."""
        slots = [slot for slot in self.slots if slot.expected_start_s < until_s]
        if slots:
            return self._precedence_finding(
                min(slots, key=lambda slot: (slot.expected_start_s, slot.promise.gang)).placement
            )
        return BreachFinding(GangEstimateUpdate())

    def _preceding_finding(self) -> BreachFinding:
        """Returns, of the gangs that came first, the last one without which the gang would fit."""
        others = [*self._placed_since, *self._overdue]
        decisive = [
            end
            for end in self._placed_since
            if not self.has_room_without([other for other in others if other is not end], self.slots)
        ]
        if decisive or self._placed_since:
            return self._precedence_finding((decisive or self._placed_since)[-1].placement)
        overdue = [end for end in others if end not in self._placed_since]
        decisive_slots = [
            slot
            for slot in self.slots
            if not self.has_room_without(overdue, [other for other in self.slots if other is not slot])
        ]
        return self._precedence_finding((decisive_slots or self.slots)[-1].placement)

    def _was_expected_to_end(self, end: RunEnd) -> bool:
        availability = self._availability
        if end.gang in availability.started:
            return False
        return (
            availability.run_ends.latest_end_s(end.gang, self._previous.given_at)
            <= self._planned_s + TIME_TOLERANCE_S
        )

    def has_room_without(
        self,
        ended: Iterable[RunEnd] = (),
        withdrawn_slots: Sequence[PromisedSlot] = (),
        *,
        closed_models: frozenset[str] = frozenset(),
    ) -> bool:
        """Returns whether the gang fits on its nodes at that time without these runs and slots.
        closed_models: GPU models that it may not use."""
        state = self._availability.capacity_snapshots(
            self._previous.nodes, pessimistic=self._pessimistic
        ).state_at(self.promised_s)
        for slot in self._availability.slots.values():
            if (
                slot.promise.gang != self._previous.gang
                and slot not in withdrawn_slots
                and slot.is_present(self.promised_s, pessimistic=self._pessimistic)
            ):
                state.allocate(slot.placement)
        for end in ended:
            state.release(end.placement)
        return state.place(self.gang, score=PROMISE_SCORE, closed_models=closed_models) is not None

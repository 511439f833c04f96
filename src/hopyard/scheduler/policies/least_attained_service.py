"""Least attained service in two classes, as Tiresias-L does it."""

from __future__ import annotations

from datetime import datetime, timedelta

from hopyard.domain.cluster import Plan, Preemption, Running, Snapshot
from hopyard.domain.duration_keys import total_gpus
from hopyard.domain.gang import Gang
from hopyard.domain.hold_causes import ServicePreemptionPending
from hopyard.domain.ids import GangId, QueueName
from hopyard.domain.preemption_causes import ServicePreemption
from hopyard.scheduler.policies.baseline_holds import BaselineHoldCauses, BaselineHolds
from hopyard.scheduler.policies.baseline_preemption import choose_victims
from hopyard.scheduler.policies.incremental_state import (
    GangClassKey,
    IncrementalState,
    TentativePlan,
    class_of,
    merge_in_order,
    submission_order,
)
from hopyard.scheduler.time_slicing import served_s

SERVICE_THRESHOLD = 3250.0  # GPU-seconds, of the published simulator
SCORE = "best-fit"
MIN_RECHECK_INTERVAL = timedelta(seconds=1)  # time alone triggers no earlier cycle

# whether it is in the worse class, queue, user and shape; if one gang of a group is refused, all are
Group = tuple[bool, QueueName, str, GangClassKey]


class LeastAttained:
    """Gangs with little received service come first, each class by priority, submission and id. A gang that
    does not fit is overtaken. A gang of the better class preempts runs of the worse class, the latest
    submissions first, until it fits.

    Service is GPUs times seconds (without GPUs: seconds). threshold: the service at which the worse class
    begins. promote: a gang returns to the better class once it has waited this many times as long as it was
    served, which prevents starvation; None, as published: never. Source: Gu et al., Tiresias: A GPU Cluster
    Manager for Distributed Deep Learning, NSDI'19 (discretised 2D-LAS).
    """

    def __init__(self, threshold: float = SERVICE_THRESHOLD, promote: float | None = None) -> None:
        self._service_classes = _ServiceClasses(threshold, promote)
        self._incremental_state: IncrementalState[Group] = IncrementalState(self._service_classes.group)
        # groups of the worse class: free capacity only shrinks until resources are released
        self._skipped: set[Group] = set()
        self._planned_starts: frozenset[GangId] = frozenset()

    def __call__(self, snapshot: Snapshot) -> Plan:
        state = self._incremental_state
        state.update(snapshot)
        if state.may_have_freed or not self._planned_starts <= state.running.keys():
            self._skipped.clear()
        cycle = _LasCycle(self._service_classes, state, snapshot.now)
        cycle.place_better_class()
        cycle.place_worse_class(self._skipped)
        placed = cycle.current.placed
        self._planned_starts = frozenset(placement.gang.id for placement in placed)
        holds = BaselineHolds(snapshot.pending, placed, cycle.causes)
        return Plan(
            snapshot.version,
            tuple(placed),
            holds,
            tuple(cycle.preemptions),
            next_cycle_at=cycle.next_recheck_at(),
        )


class _ServiceClasses:
    """The service class of each gang."""

    def __init__(self, threshold: float, promote: float | None) -> None:
        self._threshold, self.promote = threshold, promote

    def group(self, gang: Gang) -> Group:
        return gang.served_s >= self._promotion_wait_s(gang), gang.queue, gang.user, class_of(gang)

    def demoted_in_s(self, running: Running, now: datetime) -> float:
        """Returns in how many seconds a run moves to the worse class; not above 0 if it is there already."""
        served = served_s(running, now)
        remaining_s = self._promotion_wait_s(running.gang) - served
        if self.promote is not None:
            remaining_s = max(remaining_s, _waited_s(running.gang, served, now) / self.promote - served)
        return remaining_s

    def promoted_in_s(self, gang: Gang, now: datetime) -> float | None:
        """Returns in how many seconds a waiting gang of the worse class moves to the better class; None:
        never."""
        return (
            None
            if self.promote is None
            else self.promote * gang.served_s - _waited_s(gang, gang.served_s, now)
        )

    def better_class_left_s(self, gang: Gang) -> float:
        """Returns for how many seconds the gang runs in the better class once it starts; not above 0 in the
        worse class."""
        return self._promotion_wait_s(gang) - gang.served_s

    def _promotion_wait_s(self, gang: Gang) -> float:
        return self._threshold / max(total_gpus(gang), 1)


def _waited_s(gang: Gang, served: float, now: datetime) -> float:
    return (now - gang.submitted_at).total_seconds() - served


class _LasCycle:
    """current: what is free now. _after_preemptions: what is free once all preempted runs have ended and the
    gangs that they were preempted for have started."""

    def __init__(
        self, service_classes: _ServiceClasses, state: IncrementalState[Group], now: datetime
    ) -> None:
        self._service_classes, self._incremental_state, self._now = service_classes, state, now
        self.current, self._after_preemptions = TentativePlan(state, SCORE), state.capacity.copy()
        self.causes = BaselineHoldCauses(self.current, state.never_fits_cause)
        self.preemptions: list[Preemption] = []
        self._class_changes_s: list[float] = []
        self._worse_class_runs: list[Running] | None = None
        for running in state.running.values():
            if running.stopping:
                self._after_preemptions.release(running.placement)

    def place_better_class(self) -> None:
        """Starts each gang, reserves capacity that preempted runs release, preempts runs, or skips the
        gang."""
        skipped: set[Group] = set()
        for group, gang in merge_in_order({**self._better_class_gangs(), **self._promoted_gangs()}, skipped):
            if (
                not self._is_refused(gang)
                and not self._start(gang)
                and not self._reserve_after_preemptions(gang)
            ):
                skipped.add(group)

    def place_worse_class(self, skipped: set[Group]) -> None:
        """Starts or skips each gang. skipped: groups of which no gang starts; grows."""
        worse = {group: gangs for group, gangs in self._incremental_state.pending.items() if group[0]}
        started = (
            {placement.gang.id for placement in self.current.placed} | self.causes.policy_causes.keys()
            if self._service_classes.promote
            else ()
        )
        for group, gang in merge_in_order(worse, skipped):
            if gang.id not in started and (self._is_refused(gang) or not self._start(gang)):
                skipped.add(group)

    def next_recheck_at(self) -> datetime | None:
        """Returns when a run or gang, including those that start now, next changes its class with an effect
        on the plan."""
        if self._worse_class_runs is not None:
            remaining_times_s = (
                self._service_classes.better_class_left_s(placement.gang) for placement in self.current.placed
            )
            self._class_changes_s += [remaining_s for remaining_s in remaining_times_s if remaining_s > 0]
        return (
            self._now + max(timedelta(seconds=min(self._class_changes_s)), MIN_RECHECK_INTERVAL)
            if self._class_changes_s
            else None
        )

    def _better_class_gangs(self) -> dict[Group, list[Gang]]:
        return {group: gangs for group, gangs in self._incremental_state.pending.items() if not group[0]}

    def _promoted_gangs(self) -> dict[Group, list[Gang]]:
        promoted: dict[Group, list[Gang]] = {}
        for group, gangs in (
            self._incremental_state.pending.items() if self._service_classes.promote is not None else ()
        ):
            for gang in gangs if group[0] else ():
                in_s = self._service_classes.promoted_in_s(gang, self._now)
                if in_s is not None and in_s <= 0:
                    promoted.setdefault(group, []).append(gang)
                elif in_s is not None:
                    self._class_changes_s.append(in_s)
        return promoted

    def _is_refused(self, gang: Gang) -> bool:
        return (
            self._incremental_state.never_fits_cause(gang) is not None
            or self.current.quota_usage.refusal(gang) is not None
        )

    def _start(self, gang: Gang) -> bool:
        placement = self.current.try_start(gang)
        if placement is not None:
            self._after_preemptions.allocate(placement)
        return placement is not None

    def _reserve_after_preemptions(self, gang: Gang) -> bool:
        """Reserves capacity that preempted runs release; no other gang gets it."""
        usage = self.current.quota_usage
        placement = self._after_preemptions.place(gang, score=SCORE, closed_models=usage.closed_models(gang))
        if placement is None:
            choice = choose_victims(gang, self._after_preemptions, usage, self._victims(), SCORE)
            if choice is None:
                return False
            placement, victims = choice
            for running in victims:
                self._request_preemption(running, gang)
        self._after_preemptions.allocate(placement)
        self.current.capacity.allocate(placement)
        usage.charge(placement)
        self.causes.policy_causes[gang.id] = ServicePreemptionPending()
        return True

    def _request_preemption(self, running: Running, gang: Gang) -> None:
        self._victims().remove(running)
        self._after_preemptions.release(running.placement)
        self.preemptions.append(
            Preemption(running.attempt, running.gang.id, gang.id, ServicePreemption(gang.id))
        )

    def _victims(self) -> list[Running]:
        """Returns the runs of the worse class, the latest submissions first. Only called if a gang of the
        better class waits."""
        if self._worse_class_runs is None:
            self._worse_class_runs = []
            for running in self._incremental_state.running.values():
                in_s = self._service_classes.demoted_in_s(running, self._now)
                if running.stopping or not running.gang.preemptible:
                    continue
                if in_s <= 0:
                    self._worse_class_runs.append(running)
                else:
                    self._class_changes_s.append(in_s)
            self._worse_class_runs.sort(key=lambda running: submission_order(running.gang), reverse=True)
        return self._worse_class_runs

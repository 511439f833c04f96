"""The resources that a gang may use now, or at later points in time, without delaying promised starts or
reservations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from math import inf

from hopyard.domain.cluster import Running
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.scheduler.duration_estimates import DurationEstimate
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from hopyard.scheduler.timeline.earliest_fit_index import EarliestFitIndex
from hopyard.scheduler.timeline.lazy_snapshots import LazySnapshots
from hopyard.scheduler.timeline.promised_slots import TIME_TOLERANCE_S, PromisedSlot, TimelinePoint
from hopyard.scheduler.timeline.reservation_windows import (
    PREEMPTION_MARGIN_S,
    ReservationWindow,
    may_use,
    windows,
)
from hopyard.scheduler.timeline.reserved_capacity import withhold_reserved
from hopyard.scheduler.timeline.run_end_estimates import RunEnd, RunEndEstimates

MAX_STARTED_SINCE_SNAPSHOT = 64  # gangs that may start before snapshots and indices are rebuilt
UsableReservations = frozenset[int]  # indices of reservations


class Availability:
    """Mutable, valid for one cycle. `capacity` and `quota_usage` are the current state; `start` changes them.
    promised_usage: the quota in use as if all promised gangs had started too; the callback is called with the
    queue of each change."""

    def __init__(
        self,
        capacity: Capacity,
        quota_usage: QuotaUsage,
        run_ends: RunEndEstimates,
        reservations: Sequence[Reservation],
        now: datetime,
        queues: QueueTree,
        expected_nodes: Iterable[NodeId] = (),
        protected: frozenset[GangId] = frozenset(),
    ) -> None:
        """expected_nodes: nodes that will probably be promised. protected: gangs for which runs were
        preempted in earlier cycles."""
        self._protected = protected
        self.capacity, self.quota_usage, self.run_ends, self.now = capacity, quota_usage, run_ends, now
        self.reservations, self.queues = tuple(reservations), queues
        self.windows = windows(reservations, now)
        self.points = [
            TimelinePoint(window.from_s, window.from_s) for window in self.windows if window.from_s > 0
        ]
        self.slots: dict[GangId, PromisedSlot] = {}
        self.started: dict[GangId, RunEnd] = {}
        self._started_on: dict[NodeId, dict[GangId, RunEnd]] = {}
        self._reserved_nodes = {node for window in self.windows for node in window.reservation.nodes}
        # nodes that are reserved or promised
        self._contended_nodes = dict.fromkeys(sorted(self._reserved_nodes))
        # Nodes for which timeline points track free resources: all contended nodes, and the expected ones. A
        # copy of all nodes for each point would cost in proportion to the size of the cluster.
        self._tracked_nodes = {*self._contended_nodes, *expected_nodes}
        self._tracked_capacity: Capacity | None = None  # free resources of these nodes now
        self._free_by_points: dict[
            tuple[frozenset[int], UsableReservations], tuple[Capacity, list[TimelinePoint]]
        ] = {}
        self._usable_by_owner: dict[tuple[str, str], UsableReservations] = {}
        self.promised_usage = quota_usage.copy()
        self.promised_usage_listener: Callable[[QueueName], None] | None = None
        self._quota_snapshots: LazySnapshots[QuotaUsage] | None = None
        self._earliest_fits: EarliestFitIndex | None = None
        self._earliest_fits_started = 0  # number of started gangs when it was built

    # What a gang may use

    def overlapping_later(self, gang: Gang, start_s: float, until_s: float) -> list[TimelinePoint]:
        """Returns the timeline points that the gang must fit beside if it occupies the nodes during this
        period."""
        return [
            point
            for point in self.points
            if point.at_s > start_s + TIME_TOLERANCE_S and self._may_overlap(gang, point, start_s, until_s)
        ]

    def overlapping(self, gang: Gang, until_s: float) -> list[TimelinePoint]:
        """Returns the timeline points that the gang must fit beside if it starts now and runs until then.
        Promised gangs that are due now count too."""
        return [
            point
            for point in self.points
            if point.at_s <= TIME_TOLERANCE_S or self._may_overlap(gang, point, 0.0, until_s)
        ]

    def _may_overlap(self, gang: Gang, point: TimelinePoint, start_s: float, until_s: float) -> bool:
        """Returns whether a gang that runs from `start_s` to `until_s` may still run at this point. If runs
        were preempted for the promised gang, even a short gang counts, or the preempted runs would return.
        Two gangs that runs were preempted for overlap only if their times do."""
        if point.is_exclusive and gang.id not in self._protected:
            return True
        return (
            point.from_s
            < (self._safe_until_s(gang, start_s, until_s) if point.gang is None else until_s)
            - TIME_TOLERANCE_S
        )

    def _safe_until_s(self, gang: Gang, start_s: float, until_s: float) -> float:
        """Returns until when the gang may certainly run in the way of a reservation. A gang that nothing ends
        may run for ever. A gang that was preempted before cannot be predicted: it does not start where it
        would be preempted."""
        if gang.has_no_end:
            return inf
        is_predictable = gang.time_limit_s is not None or not gang.preemptions
        return (
            until_s if is_predictable else max(until_s, start_s + self.run_ends.grace_s + PREEMPTION_MARGIN_S)
        )

    def usable_reservations(self, gang: Gang) -> UsableReservations:
        """Returns the reservations that the gang may use."""
        if not self.reservations:
            return frozenset()
        key = (gang.user, gang.queue)
        usable = self._usable_by_owner.get(key)
        if usable is None:
            usable = frozenset(
                index
                for index, reservation in enumerate(self.reservations)
                if may_use(gang, reservation, self.queues)
            )
            self._usable_by_owner[key] = usable
        return usable

    def reserved_for_others(self, usable: UsableReservations, at_s: float) -> list[ReservationWindow]:
        """Returns what is reserved for other owners at that time."""
        own_reservations = [self.reservations[index] for index in usable]
        return [
            window
            for window in self.windows
            if window.from_s <= at_s + TIME_TOLERANCE_S
            and at_s < window.until_s - TIME_TOLERANCE_S
            and window.reservation not in own_reservations
        ]

    def conflicting_windows(self, gang: Gang, until_s: float) -> list[ReservationWindow]:
        """Returns reservation windows of other owners that overlap the gang if it starts now and runs until
        then."""
        own_reservations, until_s = (
            [self.reservations[index] for index in self.usable_reservations(gang)],
            self._safe_until_s(gang, 0.0, until_s),
        )
        return [
            window
            for window in self.windows
            if window.from_s < until_s - TIME_TOLERANCE_S and window.reservation not in own_reservations
        ]

    def free_for(self, gang: Gang, until_s: float) -> Capacity:
        """Returns the free resources for a gang that runs until then. The caller must not change the
        result."""
        overlapping_points, usable = self.overlapping(gang, until_s), self.usable_reservations(gang)
        if not overlapping_points and not self.reserved_for_others(usable, 0.0):
            return self.capacity
        key = (frozenset(id(point) for point in overlapping_points), usable)
        cached = self._free_by_points.get(key)
        if cached is None:
            cached = self._free_by_points[key] = (self.capacity.copy(), overlapping_points)
            self.subtract_reserved(cached[0], usable, 0.0, overlapping_points)
        return cached[0]

    def active_windows(self, gang: Gang) -> list[ReservationWindow]:
        """Returns the active reservation windows that the gang may use."""
        usable = self.usable_reservations(gang)
        own_reservations = [self.reservations[index] for index in usable]
        return (
            [
                window
                for window in self.windows
                if window.from_s <= TIME_TOLERANCE_S and window.reservation in own_reservations
            ]
            if usable
            else []
        )

    def reserved_whole_nodes(self, gang: Gang) -> dict[NodeId, float]:
        """Returns the nodes that are wholly reserved for the gang now, each with the remaining seconds."""
        whole_windows = [
            window for window in self.active_windows(gang) if window.reservation.resources is None
        ]
        return {node: window.until_s for window in whole_windows for node in window.reservation.nodes}

    def non_binding_promises(self, gang: Gang) -> list[GangId]:
        """Returns the gangs that were promised a start after a reservation of this gang, on nodes where that
        reservation is active now, and that may not use it.

        Excludes gangs for which runs were preempted, which would end in vain. Excludes gangs that have waited
        since before the reservation last began, which otherwise would wait for ever.
        """
        until_s: dict[NodeId, float] = {}
        last_start: dict[NodeId, datetime] = {}
        for window in self.active_windows(gang):
            for node in window.reservation.nodes:
                until_s[node] = max(until_s.get(node, 0.0), window.until_s)
                if window.reservation.every_s:
                    start = self.now + timedelta(seconds=window.until_s - window.reservation.every_s)
                    last_start[node] = max(last_start.get(node, start), start)

        def binds(slot: PromisedSlot) -> bool:
            promise = slot.promise
            own_nodes = until_s.keys() & {*promise.nodes}
            if (
                promise.gang == gang.id
                or promise.has_preempted
                or not own_nodes
                or any(promise.given_at < last_start[node] for node in own_nodes & last_start.keys())
            ):
                return True
            reserved_nodes = {
                node
                for window in self.active_windows(slot.placement.gang)
                for node in window.reservation.nodes
            }
            return (
                not reserved_nodes.isdisjoint(own_nodes)
                or slot.expected_start_s < min(until_s[node] for node in own_nodes) - TIME_TOLERANCE_S
            )

        return [name for name, slot in self.slots.items() if not binds(slot)] if until_s else []

    def reserved_free_for(self, gang: Gang, until_s: float) -> Capacity:
        """Same as `free_for`, but only for capacity that is reserved for the gang now. The cost grows with
        the nodes of these reservations."""
        usable = self.usable_reservations(gang)
        reserved = self.capacity.subset(
            node for window in self.active_windows(gang) for node in window.reservation.nodes
        )
        unreserved = reserved.copy()
        self._withhold_for_others(reserved, usable, 0.0)
        self._withhold_for_others(unreserved, frozenset(), 0.0)
        reserved.subtract(unreserved)
        self._subtract_points(reserved, usable, self.overlapping(gang, until_s))
        return reserved

    def subtract_reserved(
        self,
        capacity: Capacity,
        usable: UsableReservations,
        at_s: float,
        overlapping_points: Sequence[TimelinePoint],
    ) -> None:
        """Leaves in `capacity`, the state at `at_s`, only what is neither reserved for others nor needed at
        these moments."""
        self._withhold_for_others(capacity, usable, at_s)
        self._subtract_points(capacity, usable, overlapping_points)

    def _subtract_points(
        self, free: Capacity, usable: UsableReservations, overlapping_points: Sequence[TimelinePoint]
    ) -> None:
        contended_nodes = tuple(self._contended_nodes)
        for point in overlapping_points:
            capacity = self._capacity_at(point)
            if self.reserved_for_others(usable, point.at_s):
                capacity = capacity.copy()
                self._withhold_for_others(capacity, usable, point.at_s)
            free.intersect(capacity, contended_nodes)

    def restricting_usages(self, gang: Gang, points: Sequence[TimelinePoint]) -> list[QuotaUsage]:
        """Returns the usage at those moments at which the queue or the user may be refused more than now.
        Moments with enough quota even without any end until then are left out."""
        if not points or self.admits_beside_promises(gang):
            return []
        return [self._accounts_at(point) for point in points]

    def admits_beside_promises(self, gang: Gang) -> bool:
        """Returns whether queue and user may have the gang now even beside all promises, with the same
        allowed GPU models."""
        promised_usage = self.promised_usage
        return promised_usage.refusal(gang) is None and promised_usage.closed_models(
            gang
        ) <= self.quota_usage.closed_models(gang)

    def _withhold_for_others(self, capacity: Capacity, usable: UsableReservations, at_s: float) -> None:
        other_reservations = [window.reservation for window in self.reserved_for_others(usable, at_s)]
        if other_reservations:
            withhold_reserved(
                capacity,
                other_reservations,
                self._placements_at(
                    {node for reservation in other_reservations for node in reservation.nodes}, at_s
                ),
                self.queues,
            )

    def _placements_at(self, nodes: Collection[NodeId], at_s: float) -> list[Placement]:
        """Returns the placements on these nodes at that time, including promised ones."""
        present = [end.placement for end in self.ends_on(nodes) if end.mid_s > at_s]
        return present + [slot.placement for slot in self.slots.values() if slot.is_present(at_s)]

    # Present runs

    def ends_on(self, nodes: Collection[NodeId]) -> list[RunEnd]:
        """Returns the ends of runs on these nodes, with the starts of this cycle, sorted by expected end,
        then id."""
        started_ends = {gang: end for node in nodes for gang, end in self._started_on.get(node, {}).items()}
        ends = self.run_ends.ends_on(nodes)
        return (
            sorted([*ends, *started_ends.values()], key=lambda end: (end.mid_s, end.gang))
            if started_ends
            else ends
        )

    def start(self, placement: Placement, estimate: DurationEstimate) -> None:
        """Starts the gang now, and charges its resources."""
        end = RunEnd(placement, estimate.mid_s, estimate.high_s, estimate.is_limit)
        self.started[placement.gang.id] = end
        for assignment in placement.assignments:
            self._started_on.setdefault(assignment.node, {})[placement.gang.id] = end
        self.capacity.allocate(placement)
        self.quota_usage.charge(placement)
        if self._quota_snapshots is not None:
            self._quota_snapshots.added.append((end.mid_s, placement))
        is_tracked = self._is_tracked(placement)
        if is_tracked and self._tracked_capacity is not None:
            self._tracked_capacity.allocate(placement)
        for point in self.points:
            if self._may_overlap(placement.gang, point, 0.0, end.high_s):
                if is_tracked and point.capacity is not None:
                    point.capacity.allocate(placement)
                if point.quota_usage is not None:
                    point.quota_usage.charge(placement)
        self.promised_usage.charge(placement)
        self._notify_promised_usage(placement)
        self._subtract_from_caches(end)

    def add_slot(self, slot: PromisedSlot) -> None:
        """Adds a promised slot that later placements must not delay."""
        gang = slot.placement.gang.id
        new_nodes = [
            assignment.node
            for assignment in slot.placement.assignments
            if assignment.node not in self._contended_nodes
        ]
        self._contended_nodes.update(dict.fromkeys(new_nodes))
        if not self._tracked_nodes.issuperset(new_nodes):
            self._tracked_nodes.update(new_nodes)
            self._clear_capacities()
        self.slots[gang] = slot
        for point in self.points:
            if point.capacity is not None:
                self._release_ended(point, point.capacity, new_nodes)
            if slot.is_present(point.at_s):
                if point.capacity is not None:
                    point.capacity.allocate(slot.placement)
                if point.quota_usage is not None:
                    point.quota_usage.charge(slot.placement)
        self.points.append(
            TimelinePoint(
                min(slot.earliest_start_s, slot.expected_start_s),
                slot.expected_start_s,
                gang,
                is_exclusive=slot.promise.has_preempted,
            )
        )
        self.points.sort(key=lambda point: (point.from_s, point.at_s, point.gang or ""))
        self.promised_usage.charge(slot.placement)
        self._notify_promised_usage(slot.placement)
        self._free_by_points.clear()

    def remove_slot(self, gang: GangId) -> None:
        """Exactly undoes `add_slot`."""
        slot = self.slots.pop(gang, None)
        if slot is None:
            return
        self.points = [point for point in self.points if point.gang != gang]
        for point in self.points:
            if slot.is_present(point.at_s):
                if point.capacity is not None:
                    point.capacity.release(slot.placement)
                if point.quota_usage is not None:
                    point.quota_usage.credit(slot.placement)
        self.promised_usage.credit(slot.placement)
        self._notify_promised_usage(slot.placement)
        self._free_by_points.clear()

    def _notify_promised_usage(self, placement: Placement) -> None:
        if self.promised_usage_listener is not None:
            self.promised_usage_listener(placement.gang.queue)

    def _clear_caches(self) -> None:
        """Drops all cached results of the timeline points."""
        for point in self.points:
            point.quota_usage = None
        self._clear_capacities()
        self._free_by_points.clear()

    def _clear_capacities(self) -> None:
        self._tracked_capacity = None
        for point in self.points:
            point.capacity = None
            point.ended.clear()

    def _is_tracked(self, placement: Placement) -> bool:
        return any(assignment.node in self._tracked_nodes for assignment in placement.assignments)

    def update_runs(self, runs: Iterable[Running]) -> None:
        """Drops all cached results that depend on the ends of these runs."""
        for running in runs:
            self.run_ends.add(running)
        self._quota_snapshots, self._earliest_fits = None, None
        self._clear_caches()

    def committed_nodes(self) -> frozenset[NodeId]:
        return frozenset(self.promised_nodes | self._reserved_nodes)

    # States in the future

    def capacity_snapshots(
        self, nodes: Collection[NodeId], *, pessimistic: bool = False
    ) -> LazySnapshots[Capacity]:
        """Returns free resources on these nodes over time, without promised gangs and reservations. Runs end
        when expected, or at the upper end of their estimates."""
        ends = [(end.high_s if pessimistic else end.mid_s, end.placement) for end in self.ends_on(nodes)]
        if pessimistic:
            ends.sort(key=_time_order)
        return LazySnapshots(self.capacity.subset(nodes), ends, Capacity.allocate, Capacity.release)

    @property
    def promised_nodes(self) -> set[NodeId]:
        return {node for slot in self.slots.values() for node in slot.promise.nodes}

    def earliest_fits(self) -> EarliestFitIndex:
        if (
            self._earliest_fits is None
            or len(self.started) > self._earliest_fits_started + MAX_STARTED_SINCE_SNAPSHOT
        ):
            self._earliest_fits = EarliestFitIndex.of(self.capacity, self.run_ends, self.started.values())
            self._earliest_fits_started = len(self.started)
        return self._earliest_fits

    def quota_snapshots(self) -> LazySnapshots[QuotaUsage]:
        """Returns the quota in use over time, without promised gangs. Runs end when expected."""
        if self._quota_snapshots is None or len(self._quota_snapshots.added) > MAX_STARTED_SINCE_SNAPSHOT:
            self._quota_snapshots = LazySnapshots(
                self.quota_usage, self._end_times(), QuotaUsage.charge, QuotaUsage.credit
            )
        return self._quota_snapshots

    def _end_times(self) -> list[tuple[float, Placement]]:
        ends = [(end.mid_s, end.placement) for end in self.run_ends.ends()]
        if self.started:
            ends += [(end.mid_s, end.placement) for end in self.started.values()]
            ends.sort(key=_time_order)
        return ends

    def _capacity_at(self, point: TimelinePoint) -> Capacity:
        if point.capacity is None:
            if self._tracked_capacity is None:
                self._tracked_capacity = self.capacity.subset(self._tracked_nodes)
            point.capacity = self._tracked_capacity.copy()
            self._release_ended(point, point.capacity, list(self._contended_nodes))
            for end in self.started.values():
                has_ended = not self._may_overlap(end.placement.gang, point, 0.0, end.high_s)
                if has_ended and end.gang not in point.ended and self._is_tracked(end.placement):
                    point.capacity.release(end.placement)
            for slot in self.slots.values():
                if slot.is_present(point.at_s):
                    point.capacity.allocate(slot.placement)
        return point.capacity

    def _release_ended(self, point: TimelinePoint, capacity: Capacity, nodes: Collection[NodeId]) -> None:
        """Releases what is expected to have ended on these nodes by then."""
        for end in self.run_ends.ends_on(nodes):
            if end.mid_s <= point.at_s + TIME_TOLERANCE_S and end.gang not in point.ended:
                point.ended.add(end.gang)
                capacity.release(end.placement)

    def _accounts_at(self, point: TimelinePoint) -> QuotaUsage:
        if point.quota_usage is None:
            point.quota_usage = self.quota_snapshots().state_at(point.at_s)
            for slot in self.slots.values():
                if slot.is_present(point.at_s):
                    point.quota_usage.charge(slot.placement)
        return point.quota_usage

    def _subtract_from_caches(self, end: RunEnd) -> None:
        """Updates cached views that the placement overlaps wholly or not at all; drops the others."""
        nodes = {assignment.node for assignment in end.placement.assignments}
        contended, reserved = nodes & self._contended_nodes.keys(), nodes & self._reserved_nodes
        for key, (capacity, points) in list(self._free_by_points.items()):
            if reserved or (
                contended
                and not all(self._may_overlap(end.placement.gang, point, 0.0, end.high_s) for point in points)
            ):
                del self._free_by_points[key]
            else:
                capacity.allocate(end.placement)


def _time_order(pair: tuple[float, Placement]) -> tuple[float, GangId]:
    return pair[0], pair[1].gang.id

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

MAX_STARTED_SINCE_SNAPSHOT = 64  # gangs started since a ladder was made, before it is made anew
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
            TimelinePoint(booking.from_s, booking.from_s) for booking in self.windows if booking.from_s > 0
        ]
        self.slots: dict[GangId, PromisedSlot] = {}
        self.started: dict[GangId, RunEnd] = {}
        self._started_on: dict[NodeId, dict[GangId, RunEnd]] = {}
        self._reserved_nodes = {node for booking in self.windows for node in booking.reservation.nodes}
        # nodes that anybody has reserved or was promised
        self._contended_nodes = dict.fromkeys(sorted(self._reserved_nodes))
        # Nodes of which moments know what is free: all special ones, and some more. A copy of all nodes for
        # each moment would cost by the size of the cluster.
        self._tracked_nodes = {*self._contended_nodes, *expected_nodes}
        self._tracked_capacity: Capacity | None = None  # what is free there now
        self._free_by_points: dict[
            tuple[frozenset[int], UsableReservations], tuple[Capacity, list[TimelinePoint]]
        ] = {}
        self._usable_by_owner: dict[tuple[str, str], UsableReservations] = {}
        self.promised_usage = quota_usage.copy()
        self.promised_usage_listener: Callable[[QueueName], None] | None = None
        self._quota_snapshots: LazySnapshots[QuotaUsage] | None = None
        self._earliest_fits: EarliestFitIndex | None = None
        self._earliest_fits_started = 0  # gangs that had started when it was made

    # What a gang may use

    def overlapping_later(self, gang: Gang, start_s: float, until_s: float) -> list[TimelinePoint]:
        """Returns the timeline points that the gang must fit beside if it occupies the nodes during this
        period."""
        return [
            moment
            for moment in self.points
            if moment.at_s > start_s + TIME_TOLERANCE_S and self._may_overlap(gang, moment, start_s, until_s)
        ]

    def overlapping(self, gang: Gang, until_s: float) -> list[TimelinePoint]:
        """Returns the timeline points that the gang must fit beside if it starts now and runs until then.
        Promised gangs that are due now count too."""
        return [
            moment
            for moment in self.points
            if moment.at_s <= TIME_TOLERANCE_S or self._may_overlap(gang, moment, 0.0, until_s)
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
        sure = gang.time_limit_s is not None or not gang.preemptions
        return until_s if sure else max(until_s, start_s + self.run_ends.grace_s + PREEMPTION_MARGIN_S)

    def usable_reservations(self, gang: Gang) -> UsableReservations:
        """Returns the reservations that the gang may use."""
        if not self.reservations:
            return frozenset()
        key = (gang.user, gang.queue)
        found = self._usable_by_owner.get(key)
        if found is None:
            found = frozenset(
                i
                for i, reservation in enumerate(self.reservations)
                if may_use(gang, reservation, self.queues)
            )
            self._usable_by_owner[key] = found
        return found

    def reserved_for_others(self, usable: UsableReservations, at_s: float) -> list[ReservationWindow]:
        """Returns what is reserved for other owners at that time."""
        mine = [self.reservations[i] for i in usable]
        return [
            booking
            for booking in self.windows
            if booking.from_s <= at_s + TIME_TOLERANCE_S
            and at_s < booking.until_s - TIME_TOLERANCE_S
            and booking.reservation not in mine
        ]

    def conflicting_windows(self, gang: Gang, until_s: float) -> list[ReservationWindow]:
        """Returns reservation windows of other owners that overlap the gang if it starts now and runs until
        then."""
        mine, until_s = (
            [self.reservations[i] for i in self.usable_reservations(gang)],
            self._safe_until_s(gang, 0.0, until_s),
        )
        return [
            booking
            for booking in self.windows
            if booking.from_s < until_s - TIME_TOLERANCE_S and booking.reservation not in mine
        ]

    def free_for(self, gang: Gang, until_s: float) -> Capacity:
        """Returns the free resources for a gang that runs until then. The caller must not change the
        result."""
        overlapped, owned = self.overlapping(gang, until_s), self.usable_reservations(gang)
        if not overlapped and not self.reserved_for_others(owned, 0.0):
            return self.capacity
        key = (frozenset(id(moment) for moment in overlapped), owned)
        found = self._free_by_points.get(key)
        if found is None:
            found = self._free_by_points[key] = (self.capacity.copy(), overlapped)
            self.subtract_reserved(found[0], owned, 0.0, overlapped)
        return found[0]

    def active_windows(self, gang: Gang) -> list[ReservationWindow]:
        """Returns the active reservation windows that the gang may use."""
        owned = self.usable_reservations(gang)
        mine = [self.reservations[i] for i in owned]
        return (
            [
                booking
                for booking in self.windows
                if booking.from_s <= TIME_TOLERANCE_S and booking.reservation in mine
            ]
            if owned
            else []
        )

    def reserved_whole_nodes(self, gang: Gang) -> dict[NodeId, float]:
        """Returns the nodes that are wholly reserved for the gang now, each with the remaining seconds."""
        whole = [booking for booking in self.active_windows(gang) if booking.reservation.resources is None]
        return {node: booking.until_s for booking in whole for node in booking.reservation.nodes}

    def non_binding_promises(self, gang: Gang) -> list[GangId]:
        """Returns the gangs that were promised a start after a reservation of this gang, on nodes where that
        reservation is active now, and that may not use it.

        Excludes gangs for which runs were preempted, which would end in vain. Excludes gangs that have waited
        since before the reservation last began, which otherwise would wait for ever.
        """
        until_s: dict[NodeId, float] = {}
        since: dict[NodeId, datetime] = {}
        for booking in self.active_windows(gang):
            for node in booking.reservation.nodes:
                until_s[node] = max(until_s.get(node, 0.0), booking.until_s)
                if booking.reservation.every_s:
                    last = self.now + timedelta(seconds=booking.until_s - booking.reservation.every_s)
                    since[node] = max(since.get(node, last), last)

        def binds(stay: PromisedSlot) -> bool:
            promise = stay.promise
            there = until_s.keys() & {*promise.nodes}
            if (
                promise.gang == gang.id
                or promise.has_preempted
                or not there
                or any(promise.given_at < since[node] for node in there & since.keys())
            ):
                return True
            theirs = {
                node
                for booking in self.active_windows(stay.placement.gang)
                for node in booking.reservation.nodes
            }
            return (
                not theirs.isdisjoint(there)
                or stay.expected_start_s < min(until_s[node] for node in there) - TIME_TOLERANCE_S
            )

        return [name for name, stay in self.slots.items() if not binds(stay)] if until_s else []

    def reserved_free_for(self, gang: Gang, until_s: float) -> Capacity:
        """Same as `free_for`, but only for capacity that is reserved for the gang now. The cost grows with
        the nodes of these reservations."""
        owned = self.usable_reservations(gang)
        found = self.capacity.subset(
            node for booking in self.active_windows(gang) for node in booking.reservation.nodes
        )
        rest = found.copy()
        self._withhold_for_others(found, owned, 0.0)
        self._withhold_for_others(rest, frozenset(), 0.0)
        found.subtract(rest)
        self._subtract_points(found, owned, self.overlapping(gang, until_s))
        return found

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
        special = tuple(self._contended_nodes)
        for moment in overlapping_points:
            capacity = self._capacity_at(moment)
            if self.reserved_for_others(usable, moment.at_s):
                capacity = capacity.copy()
                self._withhold_for_others(capacity, usable, moment.at_s)
            free.intersect(capacity, special)

    def restricting_usages(self, gang: Gang, points: Sequence[TimelinePoint]) -> list[QuotaUsage]:
        """Returns the usage at those moments at which the queue or the user may be refused more than now.
        Moments with enough quota even without any end until then are left out."""
        if not points or self.admits_beside_promises(gang):
            return []
        return [self._accounts_at(moment) for moment in points]

    def admits_beside_promises(self, gang: Gang) -> bool:
        """Returns whether queue and user may have the gang now even beside all promises, with the same
        allowed GPU models."""
        booked = self.promised_usage
        return booked.refusal(gang) is None and booked.closed_models(gang) <= self.quota_usage.closed_models(
            gang
        )

    def _withhold_for_others(self, capacity: Capacity, usable: UsableReservations, at_s: float) -> None:
        foreign = [booking.reservation for booking in self.reserved_for_others(usable, at_s)]
        if foreign:
            withhold_reserved(
                capacity,
                foreign,
                self._placements_at({node for one in foreign for node in one.nodes}, at_s),
                self.queues,
            )

    def _placements_at(self, nodes: Collection[NodeId], at_s: float) -> list[Placement]:
        """Returns the placements on these nodes at that time, including promised ones."""
        there = [end.placement for end in self.ends_on(nodes) if end.mid_s > at_s]
        return there + [stay.placement for stay in self.slots.values() if stay.is_present(at_s)]

    # Who is there

    def ends_on(self, nodes: Collection[NodeId]) -> list[RunEnd]:
        """Returns the ends of runs on these nodes, with the starts of this cycle, sorted by expected end,
        then id."""
        new = {gang: end for node in nodes for gang, end in self._started_on.get(node, {}).items()}
        found = self.run_ends.ends_on(nodes)
        return sorted([*found, *new.values()], key=lambda end: (end.mid_s, end.gang)) if new else found

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
        near = self._is_tracked(placement)
        if near and self._tracked_capacity is not None:
            self._tracked_capacity.allocate(placement)
        for moment in self.points:
            if self._may_overlap(placement.gang, moment, 0.0, end.high_s):
                if near and moment.capacity is not None:
                    moment.capacity.allocate(placement)
                if moment.quota_usage is not None:
                    moment.quota_usage.charge(placement)
        self.promised_usage.charge(placement)
        self._notify_promised_usage(placement)
        self._subtract_from_caches(end)

    def add_slot(self, slot: PromisedSlot) -> None:
        """Adds a promised slot that later placements must not delay."""
        gang = slot.placement.gang.id
        new = [a.node for a in slot.placement.assignments if a.node not in self._contended_nodes]
        self._contended_nodes.update(dict.fromkeys(new))
        if not self._tracked_nodes.issuperset(new):
            self._tracked_nodes.update(new)
            self._clear_capacities()
        self.slots[gang] = slot
        for moment in self.points:
            if moment.capacity is not None:
                self._release_ended(moment, moment.capacity, new)
            if slot.is_present(moment.at_s):
                if moment.capacity is not None:
                    moment.capacity.allocate(slot.placement)
                if moment.quota_usage is not None:
                    moment.quota_usage.charge(slot.placement)
        self.points.append(
            TimelinePoint(
                min(slot.earliest_start_s, slot.expected_start_s),
                slot.expected_start_s,
                gang,
                is_exclusive=slot.promise.has_preempted,
            )
        )
        self.points.sort(key=lambda moment: (moment.from_s, moment.at_s, moment.gang or ""))
        self.promised_usage.charge(slot.placement)
        self._notify_promised_usage(slot.placement)
        self._free_by_points.clear()

    def remove_slot(self, gang: GangId) -> None:
        """Exactly undoes `add_slot`."""
        stay = self.slots.pop(gang, None)
        if stay is None:
            return
        self.points = [moment for moment in self.points if moment.gang != gang]
        for moment in self.points:
            if stay.is_present(moment.at_s):
                if moment.capacity is not None:
                    moment.capacity.release(stay.placement)
                if moment.quota_usage is not None:
                    moment.quota_usage.credit(stay.placement)
        self.promised_usage.credit(stay.placement)
        self._notify_promised_usage(stay.placement)
        self._free_by_points.clear()

    def _notify_promised_usage(self, placement: Placement) -> None:
        if self.promised_usage_listener is not None:
            self.promised_usage_listener(placement.gang.queue)

    def _clear_caches(self) -> None:
        """Drops all cached moments."""
        for moment in self.points:
            moment.quota_usage = None
        self._clear_capacities()
        self._free_by_points.clear()

    def _clear_capacities(self) -> None:
        self._tracked_capacity = None
        for moment in self.points:
            moment.capacity = None
            moment.ended.clear()

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
        return {node for stay in self.slots.values() for node in stay.promise.nodes}

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
                gone = not self._may_overlap(end.placement.gang, point, 0.0, end.high_s)
                if gone and end.gang not in point.ended and self._is_tracked(end.placement):
                    point.capacity.release(end.placement)
            for stay in self.slots.values():
                if stay.is_present(point.at_s):
                    point.capacity.allocate(stay.placement)
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
            for stay in self.slots.values():
                if stay.is_present(point.at_s):
                    point.quota_usage.charge(stay.placement)
        return point.quota_usage

    def _subtract_from_caches(self, end: RunEnd) -> None:
        """Updates cached views that the placement overlaps wholly or not at all; drops the others."""
        nodes = {a.node for a in end.placement.assignments}
        shared, reserved = nodes & self._contended_nodes.keys(), nodes & self._reserved_nodes
        for key, (view, moments) in list(self._free_by_points.items()):
            if reserved or (
                shared
                and not all(
                    self._may_overlap(end.placement.gang, moment, 0.0, end.high_s) for moment in moments
                )
            ):
                del self._free_by_points[key]
            else:
                view.allocate(end.placement)


def _time_order(pair: tuple[float, Placement]) -> tuple[float, GangId]:
    return pair[0], pair[1].gang.id

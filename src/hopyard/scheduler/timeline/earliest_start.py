"""Finds the earliest start of a gang that delays no promised start and no reservation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf

import numpy as np

from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import NodeId
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.feasibility import min_gpu_milli
from hopyard.scheduler.timeline.availability import Availability
from hopyard.scheduler.timeline.promised_slots import TIME_TOLERANCE_S, TimelinePoint

# the score of promised placements: the best placement is searched again when the gang starts
PROMISE_SCORE = "first-fit"


@dataclass(frozen=True, slots=True)
class StartSlot:
    """A placement that is free from `at_s` on, in seconds from now."""

    placement: Placement
    at_s: float


def earliest_start_on(
    availability: Availability,
    gang: Gang,
    duration_s: float,
    nodes: Collection[NodeId],
    *,
    pessimistic: bool = False,
    after_s: float = 0.0,
) -> StartSlot | None:
    """Returns the earliest start on these nodes alone. Runs end when expected, or at the upper end of their
    estimates."""
    return EarliestStartSearch(availability, gang, duration_s, nodes, pessimistic=pessimistic).earliest_start(
        after_s=after_s
    )


def earliest_start(availability: Availability, gang: Gang, duration_s: float) -> StartSlot | None:
    """Returns the earliest start on any nodes. Examines the nodes that can fit first, and more nodes only if
    they may be better."""
    excluded, excluded_until_s = _impossible_nodes(availability, gang, duration_s)
    slot = _earliest_start_excluding(availability, gang, duration_s, excluded)
    if excluded and (slot is None or slot.at_s > excluded_until_s):
        return _earliest_start_excluding(availability, gang, duration_s, frozenset())
    return slot


def _earliest_start_excluding(
    availability: Availability, gang: Gang, duration_s: float, excluded: frozenset[NodeId]
) -> StartSlot | None:
    index, factor, promised = availability.earliest_fits(), 2, availability.promised_nodes
    while True:
        nodes, beyond_s = index.earliest_nodes(gang, factor, promised)
        slot = earliest_start_on(
            availability, gang, duration_s, [node for node in nodes if node not in excluded]
        )
        if beyond_s == inf or (slot is not None and slot.at_s <= beyond_s):
            return slot
        if slot is not None:
            return earliest_start_on(
                availability,
                gang,
                duration_s,
                [node for node in index.nodes_before(gang, slot.at_s) if node not in excluded],
            )
        factor *= 4


def _impossible_nodes(
    availability: Availability, gang: Gang, duration_s: float
) -> tuple[frozenset[NodeId], float]:
    """Returns nodes on which the gang cannot be until some time, and that time. On these nodes, promised
    gangs leave no capacity for one replica even if no other run were present, and the gang would not end
    before they start. Capacity is computed as optimistically as in `EarliestFitIndex`."""
    slots = [slot for slot in availability.slots.values() if duration_s > slot.expected_start_s]
    names = sorted({node for slot in slots for node in slot.promise.nodes})
    nodes = [node for node in map(availability.capacity.get_node, names) if node is not None]
    if not nodes:
        return frozenset(), inf
    cpu, memory, gpu = Capacity.of(nodes, (slot.placement for slot in slots)).free_totals()
    impossible = np.ones(len(nodes), np.bool_)
    for role in gang.roles:
        request = role.resources
        impossible &= (
            (cpu < request.cpu_milli) | (memory < request.memory_bytes) | (gpu < min_gpu_milli(request))
        )
    impossible_nodes = frozenset(
        node.id for node, is_impossible in zip(nodes, impossible.tolist(), strict=True) if is_impossible
    )
    return impossible_nodes, min(
        (slot.expected_end_s for slot in slots if not impossible_nodes.isdisjoint(slot.promise.nodes)),
        default=inf,
    )


class EarliestStartSearch:
    """Searches for one gang of fixed size that runs for `duration_s`, on these nodes.

    Free capacity only grows between the times at which a promised gang starts, a reservation begins, or
    either conflicts with the gang. In each such interval the search checks the end first, and then bisects.
    """

    def __init__(
        self,
        availability: Availability,
        gang: Gang,
        duration_s: float,
        nodes: Collection[NodeId],
        *,
        pessimistic: bool,
    ) -> None:
        self._availability, self._gang, self._duration_s, self._pessimistic = (
            availability,
            gang,
            duration_s,
            pessimistic,
        )
        self._snapshots = availability.capacity_snapshots(nodes, pessimistic=pessimistic)
        node_set = frozenset(nodes)
        self._slots = [
            (slot, not node_set.isdisjoint(slot.promise.nodes)) for slot in availability.slots.values()
        ]
        self._usable_reservations = availability.usable_reservations(gang)
        self._is_quota_limited = not availability.admits_beside_promises(gang) or bool(
            availability.quota_usage.closed_models(gang)
        )

    def earliest_start(self, *, after_s: float = 0.0) -> StartSlot | None:
        """Returns None if the gang does not fit even after all runs with an expected end have ended."""
        times = self._candidate_times(after_s)
        first = _first_fitting_index(times, self._fits_without_promises)
        if first is None:
            return None
        for index, interval in enumerate(self._intervals(times[first:])):
            overlapping_points = self._availability.overlapping_later(
                self._gang, interval[0], interval[0] + self._duration_s
            )
            slot = self._search_interval(interval, overlapping_points, begin_first=index == 0)
            if slot is not None:
                return slot
        return None

    def _search_interval(
        self, times: Sequence[float], overlapping_points: Sequence[TimelinePoint], *, begin_first: bool
    ) -> StartSlot | None:
        """begin_first: the beginning is likely to fit, and is checked first."""
        usages = self._availability.restricting_usages(self._gang, overlapping_points)
        if any(usage.refusal(self._gang) for usage in usages):
            return None
        closed_models = frozenset(model for usage in usages for model in usage.closed_models(self._gang))
        placements: dict[float, Placement | None] = {}

        def fits(at_s: float) -> bool:
            placements[at_s] = self._place_at(at_s, overlapping_points, closed_models)
            return placements[at_s] is not None

        if begin_first and fits(times[0]):
            fitting_index: int | None = 0
        else:
            fitting_index = _first_fitting_index(times, fits) if fits(times[-1]) else None
        placement = None if fitting_index is None else placements[times[fitting_index]]
        return (
            None if fitting_index is None or placement is None else StartSlot(placement, times[fitting_index])
        )

    def _place_at(
        self, at_s: float, overlapping_points: Sequence[TimelinePoint], closed_models: frozenset[str]
    ) -> Placement | None:
        availability, gang = self._availability, self._gang
        present = [
            (slot.placement, on_searched_nodes)
            for slot, on_searched_nodes in self._slots
            if slot.is_present(at_s, pessimistic=self._pessimistic)
        ]
        if self._is_quota_limited:
            usage = availability.quota_snapshots().state_at(at_s)
            for placement, _ in present:
                usage.charge(placement)
            if usage.refusal(gang):
                return None
            closed_models |= usage.closed_models(gang)
        state = self._snapshots.state_at(at_s)
        for placement, on_searched_nodes in present:
            if on_searched_nodes:
                state.allocate(placement)
        availability.subtract_reserved(state, self._usable_reservations, at_s, overlapping_points)
        return state.place(gang, score=PROMISE_SCORE, closed_models=closed_models)

    def _fits_without_promises(self, at_s: float) -> bool:
        """Returns whether the gang would fit without promises and reservations. If not, it does not fit with
        them."""
        if self._is_quota_limited and self._availability.quota_snapshots().state_at(at_s).refusal(self._gang):
            return False
        return self._snapshots.state_at(at_s).place(self._gang, score=PROMISE_SCORE) is not None

    def _candidate_times(self, after_s: float) -> list[float]:
        """Returns now, and all times at which a run ends."""
        availability = self._availability
        times = {after_s, *self._snapshots.times}
        if self._is_quota_limited:
            times.update(availability.quota_snapshots().times)
        times.update(slot.end_s(pessimistic=self._pessimistic) for slot, _ in self._slots)
        times.update(window.until_s for window in availability.windows if window.until_s < inf)
        return sorted(at_s for at_s in times if at_s >= after_s)

    def _intervals(self, candidate_times: Sequence[float]) -> list[list[float]]:
        availability = self._availability
        boundaries = [point.at_s - TIME_TOLERANCE_S for point in availability.points]
        boundaries += [point.from_s - self._duration_s + TIME_TOLERANCE_S for point in availability.points]
        boundaries += [
            slot.end_s(pessimistic=self._pessimistic) - TIME_TOLERANCE_S for slot, _ in self._slots
        ]
        boundaries += [window.until_s - TIME_TOLERANCE_S for window in availability.windows]
        boundaries.sort()
        return [
            list(interval)
            for _, interval in groupby(candidate_times, lambda at_s: bisect_right(boundaries, at_s))
        ]


def _first_fitting_index(times: Sequence[float], fits: Callable[[float], bool]) -> int | None:
    """Returns the index of the first fitting item; all later items fit too. Early items are tried first,
    because later ones are more expensive."""
    low, high = 0, 0
    while high < len(times) and not fits(times[high]):
        low, high = high + 1, 2 * high + 1
    if high >= len(times):
        if low >= len(times) or not fits(times[-1]):
            return None
        high = len(times) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(times[middle]) else (middle + 1, high)
    return high

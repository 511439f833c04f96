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

# the score of places that are only promised: what suits the cluster best is seen when the time has come
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
    """Returns the earliest start on any nodes. Examines the nodes with the earliest room first, and more
    nodes only if they may be better."""
    lost, lost_until_s = _impossible_nodes(availability, gang, duration_s)
    spot = _earliest_start_excluding(availability, gang, duration_s, lost)
    if lost and (spot is None or spot.at_s > lost_until_s):
        return _earliest_start_excluding(availability, gang, duration_s, frozenset())
    return spot


def _earliest_start_excluding(
    availability: Availability, gang: Gang, duration_s: float, excluded: frozenset[NodeId]
) -> StartSlot | None:
    returns, times, promised = availability.earliest_fits(), 2, availability.promised_nodes
    while True:
        nodes, beyond_s = returns.earliest_nodes(gang, times, promised)
        spot = earliest_start_on(
            availability, gang, duration_s, [node for node in nodes if node not in excluded]
        )
        if beyond_s == inf or (spot is not None and spot.at_s <= beyond_s):
            return spot
        if spot is not None:
            return earliest_start_on(
                availability,
                gang,
                duration_s,
                [node for node in returns.nodes_before(gang, spot.at_s) if node not in excluded],
            )
        times *= 4


def _impossible_nodes(
    availability: Availability, gang: Gang, duration_s: float
) -> tuple[frozenset[NodeId], float]:
    """Nodes on which it cannot be until some time: even if nothing else ran there, what is promised leaves no
    room for one replica, and it would not be gone before. What they could hold is counted as hopefully as in
    `EarliestFitIndex`."""
    stays = [stay for stay in availability.slots.values() if duration_s > stay.expected_start_s]
    names = sorted({node for stay in stays for node in stay.promise.nodes})
    nodes = [node for node in map(availability.capacity.get_node, names) if node is not None]
    if not nodes:
        return frozenset(), inf
    cpu, memory, gpu = Capacity.of(nodes, (stay.placement for stay in stays)).free_totals()
    lost = np.ones(len(nodes), np.bool_)
    for role in gang.roles:
        asked = role.resources
        lost &= (cpu < asked.cpu_milli) | (memory < asked.memory_bytes) | (gpu < min_gpu_milli(asked))
    found = frozenset(node.id for node, gone in zip(nodes, lost.tolist(), strict=True) if gone)
    return found, min(
        (stay.expected_end_s for stay in stays if not found.isdisjoint(stay.promise.nodes)), default=inf
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
        here = frozenset(nodes)
        self._slots = [
            (stay, not here.isdisjoint(stay.promise.nodes)) for stay in availability.slots.values()
        ]
        self._usable_reservations = availability.usable_reservations(gang)
        self._is_quota_limited = not availability.admits_beside_promises(gang) or bool(
            availability.quota_usage.closed_models(gang)
        )

    def earliest_start(self, *, after_s: float = 0.0) -> StartSlot | None:
        """Returns None if the gang finds no place even when all runs have ended that are expected to end."""
        times = self._candidate_times(after_s)
        first = _first_fitting_index(times, self._fits_without_promises)
        if first is None:
            return None
        for index, stretch in enumerate(self._intervals(times[first:])):
            overlapped = self._availability.overlapping_later(
                self._gang, stretch[0], stretch[0] + self._duration_s
            )
            spot = self._search_interval(stretch, overlapped, begin_first=index == 0)
            if spot is not None:
                return spot
        return None

    def _search_interval(
        self, times: Sequence[float], overlapping_points: Sequence[TimelinePoint], *, begin_first: bool
    ) -> StartSlot | None:
        """begin_first: it may well fit at the beginning, which is looked at first then."""
        accounts = self._availability.restricting_usages(self._gang, overlapping_points)
        if any(later.refusal(self._gang) for later in accounts):
            return None
        closed = frozenset(model for later in accounts for model in later.closed_models(self._gang))
        placements: dict[float, Placement | None] = {}

        def fits(at_s: float) -> bool:
            placements[at_s] = self._place_at(at_s, overlapping_points, closed)
            return placements[at_s] is not None

        if begin_first and fits(times[0]):
            found: int | None = 0
        else:
            found = _first_fitting_index(times, fits) if fits(times[-1]) else None
        placement = None if found is None else placements[times[found]]
        return None if found is None or placement is None else StartSlot(placement, times[found])

    def _place_at(
        self, at_s: float, overlapping_points: Sequence[TimelinePoint], closed_models: frozenset[str]
    ) -> Placement | None:
        availability, gang = self._availability, self._gang
        there = [
            (stay.placement, here)
            for stay, here in self._slots
            if stay.is_present(at_s, pessimistic=self._pessimistic)
        ]
        if self._is_quota_limited:
            accounts = availability.quota_snapshots().state_at(at_s)
            for placement, _ in there:
                accounts.charge(placement)
            if accounts.refusal(gang):
                return None
            closed_models |= accounts.closed_models(gang)
        state = self._snapshots.state_at(at_s)
        for placement, here in there:
            if here:
                state.allocate(placement)
        availability.subtract_reserved(state, self._usable_reservations, at_s, overlapping_points)
        return state.place(gang, score=PROMISE_SCORE, closed_models=closed_models)

    def _fits_without_promises(self, at_s: float) -> bool:
        """Whether it would fit if nothing were promised and nothing reserved: else it does not fit anyway."""
        if self._is_quota_limited and self._availability.quota_snapshots().state_at(at_s).refusal(self._gang):
            return False
        return self._snapshots.state_at(at_s).place(self._gang, score=PROMISE_SCORE) is not None

    def _candidate_times(self, after_s: float) -> list[float]:
        """Returns now, and all times at which a run ends."""
        availability = self._availability
        found = {after_s, *self._snapshots.times}
        if self._is_quota_limited:
            found.update(availability.quota_snapshots().times)
        found.update(stay.end_s(pessimistic=self._pessimistic) for stay, _ in self._slots)
        found.update(booking.until_s for booking in availability.windows if booking.until_s < inf)
        return sorted(at_s for at_s in found if at_s >= after_s)

    def _intervals(self, candidate_times: Sequence[float]) -> list[list[float]]:
        availability = self._availability
        turns = [moment.at_s - TIME_TOLERANCE_S for moment in availability.points]
        turns += [moment.from_s - self._duration_s + TIME_TOLERANCE_S for moment in availability.points]
        turns += [stay.end_s(pessimistic=self._pessimistic) - TIME_TOLERANCE_S for stay, _ in self._slots]
        turns += [booking.until_s - TIME_TOLERANCE_S for booking in availability.windows]
        turns.sort()
        return [
            list(stretch) for _, stretch in groupby(candidate_times, lambda at_s: bisect_right(turns, at_s))
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

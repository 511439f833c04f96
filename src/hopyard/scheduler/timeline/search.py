"""The earliest time at which a gang finds a place that is in nobody's way."""

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
from hopyard.scheduler.placement.fitting import least_gpu
from hopyard.scheduler.timeline.moments import SLACK_S, Moment
from hopyard.scheduler.timeline.outlook import Outlook

# the score of places that are only promised: what suits the cluster best is seen when the time has come
ANY = "first-fit"


@dataclass(frozen=True, slots=True)
class Spot:
    """A place that is free from `at_s` on, in seconds from now."""

    placement: Placement
    at_s: float


def earliest_on(
    outlook: Outlook,
    gang: Gang,
    high_s: float,
    nodes: Collection[NodeId],
    *,
    latest: bool = False,
    after_s: float = 0.0,
) -> Spot | None:
    """The earliest start on these nodes alone, if everything ends when expected, or at the latest
    expected."""
    return Search(outlook, gang, high_s, nodes, latest=latest).earliest(after_s=after_s)


def earliest(outlook: Outlook, gang: Gang, high_s: float) -> Spot | None:
    """The earliest start anywhere. Looks at the nodes first that have room first, and at more only where they
    may be better."""
    lost, lost_until_s = _lost(outlook, gang, high_s)
    spot = _earliest_beside(outlook, gang, high_s, lost)
    if lost and (spot is None or spot.at_s > lost_until_s):
        return _earliest_beside(outlook, gang, high_s, frozenset())
    return spot


def _earliest_beside(outlook: Outlook, gang: Gang, high_s: float, lost: frozenset[NodeId]) -> Spot | None:
    returns, times, promised = outlook.returns(), 2, outlook.promised
    while True:
        nodes, beyond_s = returns.nearest(gang, times, promised)
        spot = earliest_on(outlook, gang, high_s, [node for node in nodes if node not in lost])
        if beyond_s == inf or (spot is not None and spot.at_s <= beyond_s):
            return spot
        if spot is not None:
            return earliest_on(
                outlook, gang, high_s, [node for node in returns.until(gang, spot.at_s) if node not in lost]
            )
        times *= 4


def _lost(outlook: Outlook, gang: Gang, high_s: float) -> tuple[frozenset[NodeId], float]:
    """Nodes on which it cannot be until some time: even if nothing else ran there, what is promised leaves no
    room for one replica, and it would not be gone before. What they could hold is counted as hopefully as in
    `Returns`."""
    stays = [stay for stay in outlook.stays.values() if high_s > stay.at_s]
    names = sorted({node for stay in stays for node in stay.promise.nodes})
    nodes = [node for node in map(outlook.capacity.node, names) if node is not None]
    if not nodes:
        return frozenset(), inf
    cpu, memory, gpu = Capacity.of(nodes, (stay.placement for stay in stays)).sums()
    lost = np.ones(len(nodes), np.bool_)
    for role in gang.roles:
        asked = role.resources
        lost &= (cpu < asked.cpu_milli) | (memory < asked.memory_bytes) | (gpu < least_gpu(asked))
    found = frozenset(node.id for node, gone in zip(nodes, lost.tolist(), strict=True) if gone)
    return found, min(
        (stay.until_s for stay in stays if not found.isdisjoint(stay.promise.nodes)), default=inf
    )


class Search:
    """For one gang of a fixed size that would stay for `high_s`, on these nodes.

    Between the times at which something is taken (a promised gang starts, a reservation begins) or gets in
    its way, more and more becomes free: there it is enough to look at the end of the stretch, and then to
    halve it.
    """

    def __init__(
        self, outlook: Outlook, gang: Gang, high_s: float, nodes: Collection[NodeId], *, latest: bool
    ) -> None:
        self._outlook, self._gang, self._high_s, self._latest = outlook, gang, high_s, latest
        self._ladder = outlook.ladder_on(nodes, latest=latest)
        here = frozenset(nodes)
        self._stays = [(stay, not here.isdisjoint(stay.promise.nodes)) for stay in outlook.stays.values()]
        self._owned = outlook.owned(gang)
        self._limited = not outlook.admits_all(gang) or bool(outlook.accounts.closed_models(gang))

    def earliest(self, *, after_s: float = 0.0) -> Spot | None:
        """None where it finds no place even when all has ended that is expected to end."""
        times = self._times(after_s)
        first = _first(times, self._fits_alone)
        if first is None:
            return None
        for index, stretch in enumerate(self._stretches(times[first:])):
            overlapped = self._outlook.overlapped(self._gang, stretch[0], stretch[0] + self._high_s)
            spot = self._in_stretch(stretch, overlapped, likely=index == 0)
            if spot is not None:
                return spot
        return None

    def _in_stretch(
        self, stretch: Sequence[float], overlapped: Sequence[Moment], *, likely: bool
    ) -> Spot | None:
        """likely: it may well fit at the beginning, which is looked at first then."""
        accounts = self._outlook.refusing(self._gang, overlapped)
        if any(later.refusal(self._gang) for later in accounts):
            return None
        closed = frozenset(model for later in accounts for model in later.closed_models(self._gang))
        placements: dict[float, Placement | None] = {}

        def fits(at_s: float) -> bool:
            placements[at_s] = self._place(at_s, overlapped, closed)
            return placements[at_s] is not None

        if likely and fits(stretch[0]):
            found: int | None = 0
        else:
            found = _first(stretch, fits) if fits(stretch[-1]) else None
        placement = None if found is None else placements[stretch[found]]
        return None if found is None or placement is None else Spot(placement, stretch[found])

    def _place(self, at_s: float, overlapped: Sequence[Moment], closed: frozenset[str]) -> Placement | None:
        outlook, gang = self._outlook, self._gang
        there = [
            (stay.placement, here) for stay, here in self._stays if stay.there(at_s, latest=self._latest)
        ]
        if self._limited:
            accounts = outlook.accounts_ladder().at(at_s)
            for placement, _ in there:
                accounts.charge(placement)
            if accounts.refusal(gang):
                return None
            closed |= accounts.closed_models(gang)
        state = self._ladder.at(at_s)
        for placement, here in there:
            if here:
                state.take(placement)
        outlook.restrict(state, self._owned, at_s, overlapped)
        return state.place(gang, score=ANY, closed_models=closed)

    def _fits_alone(self, at_s: float) -> bool:
        """Whether it would fit if nothing were promised and nothing reserved: else it does not fit anyway."""
        if self._limited and self._outlook.accounts_ladder().at(at_s).refusal(self._gang):
            return False
        return self._ladder.at(at_s).place(self._gang, score=ANY) is not None

    def _times(self, after_s: float) -> list[float]:
        """Now, and whenever something ends."""
        outlook = self._outlook
        found = {after_s, *self._ladder.times}
        if self._limited:
            found.update(outlook.accounts_ladder().times)
        found.update(stay.gone_s(latest=self._latest) for stay, _ in self._stays)
        found.update(booking.until_s for booking in outlook.bookings if booking.until_s < inf)
        return sorted(at_s for at_s in found if at_s >= after_s)

    def _stretches(self, times: Sequence[float]) -> list[list[float]]:
        outlook = self._outlook
        turns = [moment.at_s - SLACK_S for moment in outlook.moments]
        turns += [moment.from_s - self._high_s + SLACK_S for moment in outlook.moments]
        turns += [stay.gone_s(latest=self._latest) - SLACK_S for stay, _ in self._stays]
        turns += [booking.until_s - SLACK_S for booking in outlook.bookings]
        turns.sort()
        return [list(stretch) for _, stretch in groupby(times, lambda at_s: bisect_right(turns, at_s))]


def _first(times: Sequence[float], fits: Callable[[float], bool]) -> int | None:
    """The index of the first that fits, where all after one that fits do too.
    Those near the beginning are looked at first: the later, the more work they are."""
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

"""Finds the runs to preempt for a gang: the set that suffices and loses the fewest GPU-seconds of unsaved
work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush

from hopyard.domain.cluster import Node, Running
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.quota.quota_usage import QuotaUsage

MAX_EXACT_CANDIDATES = 12  # with so many that could make room, the cheapest set is found for certain
# each time that a run was preempted before counts as so much work lost: one that just came back would be the
# cheapest
PREEMPTION_PENALTY_S = 600.0
MAX_COUNTED_PREEMPTIONS = 6  # times that count
MAX_EXACT_TRIES = 120  # sets that are tried to be certain of it


@dataclass(frozen=True, slots=True)
class Victim:
    """A run that may be preempted. unsaved_work: the lost work, in thousandths of a GPU times milliseconds.
    tier: runs of a smaller tier are preempted first, whatever they lose."""

    running: Running
    unsaved_work: int
    tier: int = 0

    @property
    def sort_key(self) -> tuple[int, GangId]:
        return self.unsaved_work, self.running.gang.id

    @property
    def size(self) -> int:
        return sum(
            len(assignment.gpus) * assignment.gpu_milli for assignment in self.running.placement.assignments
        )


def gpu_weight_of(nodes: Iterable[Node]) -> Callable[[Placement], int]:
    """What a placement holds in thousandths of GPUs; where it holds none, as many as its part of all CPUs is
    of all GPUs. In a cluster without GPUs: thousandths of cores."""
    gpus = cpus = 0
    for node in nodes:
        gpus, cpus = gpus + WHOLE_GPU * len(node.gpus), cpus + node.cpu_milli

    def of(placement: Placement) -> int:
        held = sum(len(assignment.gpus) * assignment.gpu_milli for assignment in placement.assignments)
        if held:
            return held
        cores = sum(role.replicas * role.resources.cpu_milli for role in placement.gang.roles)
        return cores * gpus // cpus if gpus and cpus else cores

    return of


def unsaved_gpu_seconds(running: Running, now: datetime, weight: Callable[[Placement], int]) -> int:
    """Returns the work that preemption loses now: the time since the newest checkpoint, or since the start,
    for all resources of the run. A run that was preempted before counts more, so that the same run is not
    chosen again and again."""
    since = max((at for at in (running.started_at, running.saved_at) if at is not None), default=now)
    ran_s = max((now - since).total_seconds(), 0.0)
    again_s = PREEMPTION_PENALTY_S * min(running.gang.preemptions, MAX_COUNTED_PREEMPTIONS)
    return weight(running.placement) * int((ran_s + again_s) * 1000)


class VictimSearch:
    """Searches the cheapest victims for one gang.

    capacity, quota_usage: the state once all runs that were asked to stop have ended. The search undoes its
    changes to them.
    """

    def __init__(self, gang: Gang, capacity: Capacity, quota_usage: QuotaUsage) -> None:
        self._gang, self._capacity, self._quota_usage = (
            gang.with_replica_counts([role.required_replicas for role in gang.roles]),
            capacity,
            quota_usage,
        )
        self._removed: list[Placement] = []
        self._quota_limited = quota_usage.refusal(self._gang) is not None or bool(
            quota_usage.closed_models(self._gang)
        )

    def cheapest(self, victims: Sequence[Victim]) -> list[Victim] | None:
        """A set that lets the gang start and of which nobody can be spared; the cheapest of all when there
        are few to choose from. None where all of them together would not do."""
        ranked = sorted(victims, key=lambda victim: victim.sort_key)
        if self.place_without(ranked) is None:
            return None
        return (
            self._search_exact(ranked) if len(ranked) <= MAX_EXACT_CANDIDATES else None
        ) or self._search_greedy(ranked)

    def place_without(self, victims: Sequence[Victim]) -> Placement | None:
        """Where the gang goes when these are gone, None where they do not suffice."""
        try:
            return self._place_removing([victim.running.placement for victim in victims])
        finally:
            self._restore_after(0)

    def _place_removing(self, removed: Sequence[Placement]) -> Placement | None:
        """As `place`, for a list of which one is a beginning of the next; they stay gone."""
        self._restore_after(len(removed))
        more = removed[len(self._removed) :]
        self._removed += more
        self._capacity.release_all(more)
        if self._quota_limited:
            self._quota_usage.credit_all(more)
        if not self._quota_limited:  # it may use more as it is: less in use changes nothing
            return self._capacity.place(self._gang)
        if self._quota_usage.refusal(self._gang) is not None:
            return None
        return self._capacity.place(self._gang, closed_models=self._quota_usage.closed_models(self._gang))

    def _restore_after(self, count: int) -> None:
        """Of those that went, all but the first so many are there again."""
        again = self._removed[count:]
        del self._removed[count:]
        self._capacity.allocate_all(again)
        if self._quota_limited:
            self._quota_usage.charge_all(again)

    def _search_exact(self, ranked: list[Victim]) -> list[Victim] | None:
        """Tries the sets of victims, cheapest first; equal costs are ordered by size, then by ids."""
        for tries, chosen in enumerate(_subsets_by_cost(ranked)):
            if self.place_without(chosen) is not None:
                return self._drop_unneeded(chosen)
            if tries == MAX_EXACT_TRIES:
                break
        return None

    def _search_greedy(self, ranked: list[Victim]) -> list[Victim] | None:
        """The better of two ways to add one after another: the cheapest first, and the cheapest for its size
        first."""
        by_size = sorted(
            ranked, key=lambda victim: (victim.unsaved_work / max(victim.size, 1), victim.running.gang.id)
        )
        found = [self._shortest_prefix(ranked), self._shortest_prefix(by_size)]
        return min((chosen for chosen in found if chosen), key=_total_cost, default=None)

    def _shortest_prefix(self, ranked: Sequence[Victim]) -> list[Victim] | None:
        """The shortest beginning of the list that suffices, less all that can be spared."""
        gone = [victim.running.placement for victim in ranked]
        low, high = 0, 1
        try:
            place = self._place_removing(gone[:high])
            while place is None:
                if high >= len(ranked):
                    return None
                low, high = high, min(high * 2, len(ranked))
                place = self._place_removing(gone[:high])
            while high - low > 1:
                middle = (low + high) // 2
                found = self._place_removing(gone[:middle])
                low, high, place = (low, middle, place) if found is not None else (middle, high, place)
                place = found or place
        finally:
            self._restore_after(0)
        nodes = {assignment.node for assignment in place.assignments}
        near = [
            victim
            for victim in ranked[:high]
            if any(a.node in nodes for a in victim.running.placement.assignments)
        ]
        if self.place_without(near) is None:  # others had to go for the queue's sake
            near = list(ranked[:high])
        return self._drop_unneeded(near)

    def _drop_unneeded(self, chosen: Sequence[Victim]) -> list[Victim]:
        """Without each that the others make up for, the most expensive first."""
        kept = list(chosen)
        for victim in sorted(chosen, key=lambda one: one.sort_key, reverse=True):
            rest = [one for one in kept if one is not victim]
            if rest and self.place_without(rest) is not None:
                kept = rest
        return kept


def _total_cost(victims: Sequence[Victim]) -> tuple[int, int, list[GangId]]:
    return (
        sum(victim.unsaved_work for victim in victims),
        len(victims),
        sorted(victim.running.gang.id for victim in victims),
    )


def _subsets_by_cost(ranked: Sequence[Victim]) -> Iterator[list[Victim]]:
    """All sets but the empty one, by what they cost together: each is made from a cheaper one by adding the
    next victim, or by putting the next in place of the last."""
    if not ranked:
        return
    heap: list[tuple[tuple[int, int, list[GangId]], tuple[int, ...]]] = [(_total_cost(ranked[:1]), (0,))]
    while heap:
        _, chosen = heappop(heap)
        yield [ranked[at] for at in chosen]
        following = chosen[-1] + 1
        if following < len(ranked):
            for more in ((*chosen, following), (*chosen[:-1], following)):
                heappush(heap, (_total_cost([ranked[at] for at in more]), more))

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

MAX_EXACT_CANDIDATES = 12  # with up to this many candidates, the cheapest set is guaranteed
# each earlier preemption of a run counts as this much lost work: otherwise a run that just resumed would be
# the cheapest
PREEMPTION_PENALTY_S = 600.0
MAX_COUNTED_PREEMPTIONS = 6  # earlier preemptions that count
MAX_EXACT_TRIES = 120  # sets that are tried for that guarantee


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
    """Returns a function that gives the thousandths of GPUs of a placement. A placement without GPUs counts
    by its CPUs, converted by the ratio of GPUs to CPUs in the cluster. In a cluster without GPUs, it gives
    thousandths of cores."""
    gpus = cpus = 0
    for node in nodes:
        gpus, cpus = gpus + WHOLE_GPU * len(node.gpus), cpus + node.cpu_milli

    def of(placement: Placement) -> int:
        gpu_milli = sum(len(assignment.gpus) * assignment.gpu_milli for assignment in placement.assignments)
        if gpu_milli:
            return gpu_milli
        cores = sum(role.replicas * role.resources.cpu_milli for role in placement.gang.roles)
        return cores * gpus // cpus if gpus and cpus else cores

    return of


def unsaved_gpu_seconds(running: Running, now: datetime, weight: Callable[[Placement], int]) -> int:
    """Returns the work that preemption loses now: the time since the newest checkpoint, or since the start,
    for all resources of the run. A run that was preempted before counts more, so that the same run is not
    chosen again and again."""
    since = max((time for time in (running.started_at, running.saved_at) if time is not None), default=now)
    ran_s = max((now - since).total_seconds(), 0.0)
    penalty_s = PREEMPTION_PENALTY_S * min(running.gang.preemptions, MAX_COUNTED_PREEMPTIONS)
    return weight(running.placement) * int((ran_s + penalty_s) * 1000)


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
        """Returns a minimal set of victims that lets the gang start; None if all of them do not suffice. With
        few candidates, it is the cheapest set of all."""
        ranked = sorted(victims, key=lambda victim: victim.sort_key)
        if self.place_without(ranked) is None:
            return None
        return (
            self._search_exact(ranked) if len(ranked) <= MAX_EXACT_CANDIDATES else None
        ) or self._search_greedy(ranked)

    def place_without(self, victims: Sequence[Victim]) -> Placement | None:
        """Returns the placement of the gang after these victims have ended, None if they do not suffice."""
        try:
            return self._place_removing([victim.running.placement for victim in victims])
        finally:
            self._restore_after(0)

    def _place_removing(self, removed: Sequence[Placement]) -> Placement | None:
        """Does the same as `place_without` without restoring the victims, for lists of which each is a prefix
        of the next or the reverse."""
        self._restore_after(len(removed))
        newly_removed = removed[len(self._removed) :]
        self._removed += newly_removed
        self._capacity.release_all(newly_removed)
        if self._quota_limited:
            self._quota_usage.credit_all(newly_removed)
        if not self._quota_limited:  # the quota suffices already: less usage changes nothing
            return self._capacity.place(self._gang)
        if self._quota_usage.refusal(self._gang) is not None:
            return None
        return self._capacity.place(self._gang, closed_models=self._quota_usage.closed_models(self._gang))

    def _restore_after(self, count: int) -> None:
        """Restores all removed placements but the first `count`."""
        restored = self._removed[count:]
        del self._removed[count:]
        self._capacity.allocate_all(restored)
        if self._quota_limited:
            self._quota_usage.charge_all(restored)

    def _search_exact(self, ranked: list[Victim]) -> list[Victim] | None:
        """Tries the sets of victims, cheapest first; equal costs are ordered by size, then by ids."""
        for tries, chosen in enumerate(_subsets_by_cost(ranked)):
            if self.place_without(chosen) is not None:
                return self._drop_unneeded(chosen)
            if tries == MAX_EXACT_TRIES:
                break
        return None

    def _search_greedy(self, ranked: list[Victim]) -> list[Victim] | None:
        """Returns the better of two greedy searches: the cheapest victim first, and the cheapest for its size
        first."""
        by_size = sorted(
            ranked, key=lambda victim: (victim.unsaved_work / max(victim.size, 1), victim.running.gang.id)
        )
        results = [self._shortest_prefix(ranked), self._shortest_prefix(by_size)]
        return min((chosen for chosen in results if chosen), key=_total_cost, default=None)

    def _shortest_prefix(self, ranked: Sequence[Victim]) -> list[Victim] | None:
        """Returns the shortest prefix of the list that suffices, without unneeded victims."""
        placements = [victim.running.placement for victim in ranked]
        low, high = 0, 1
        try:
            placement = self._place_removing(placements[:high])
            while placement is None:
                if high >= len(ranked):
                    return None
                low, high = high, min(high * 2, len(ranked))
                placement = self._place_removing(placements[:high])
            while high - low > 1:
                middle = (low + high) // 2
                smaller = self._place_removing(placements[:middle])
                low, high, placement = (
                    (low, middle, placement) if smaller is not None else (middle, high, placement)
                )
                placement = smaller or placement
        finally:
            self._restore_after(0)
        nodes = {assignment.node for assignment in placement.assignments}
        on_placement = [
            victim
            for victim in ranked[:high]
            if any(a.node in nodes for a in victim.running.placement.assignments)
        ]
        if self.place_without(on_placement) is None:  # other victims are needed for the quota
            on_placement = list(ranked[:high])
        return self._drop_unneeded(on_placement)

    def _drop_unneeded(self, chosen: Sequence[Victim]) -> list[Victim]:
        """Removes each victim that is not needed beside the others, the most expensive first."""
        needed = list(chosen)
        for victim in sorted(chosen, key=lambda candidate: candidate.sort_key, reverse=True):
            remaining = [candidate for candidate in needed if candidate is not victim]
            if remaining and self.place_without(remaining) is not None:
                needed = remaining
        return needed


def _total_cost(victims: Sequence[Victim]) -> tuple[int, int, list[GangId]]:
    return (
        sum(victim.unsaved_work for victim in victims),
        len(victims),
        sorted(victim.running.gang.id for victim in victims),
    )


def _subsets_by_cost(ranked: Sequence[Victim]) -> Iterator[list[Victim]]:
    """Yields all non-empty sets, sorted by total cost. Each set is made from a cheaper one by adding the next
    victim, or by replacing the last victim with the next."""
    if not ranked:
        return
    heap: list[tuple[tuple[int, int, list[GangId]], tuple[int, ...]]] = [(_total_cost(ranked[:1]), (0,))]
    while heap:
        _, chosen = heappop(heap)
        yield [ranked[index] for index in chosen]
        next_index = chosen[-1] + 1
        if next_index < len(ranked):
            for successor in ((*chosen, next_index), (*chosen[:-1], next_index)):
                heappush(heap, (_total_cost([ranked[index] for index in successor]), successor))

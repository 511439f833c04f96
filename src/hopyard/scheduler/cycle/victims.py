"""Which runs make room for a gang: the fewest GPU-seconds of work that is not saved, of those that suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush

from hopyard.domain.cluster import Node, Running
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.placement.capacity import Capacity

EXACT = 12  # with so many that could make room, the cheapest set is found for certain
EXACT_TRIES = 600  # sets that are tried to be certain of it


@dataclass(frozen=True, slots=True)
class Victim:
    """A run that may be asked to make room.

    lost: what is lost, in thousandths of a GPU times milliseconds. reclaimed: only as long as its queue owes, because it
    is not of lower rank than who wants its place.
    """

    running: Running
    lost: int
    reclaimed: bool

    @property
    def key(self) -> tuple[int, GangId]:
        return self.lost, self.running.gang.id


def weight(nodes: Iterable[Node]) -> Callable[[Placement], int]:
    """What a placement holds in thousandths of GPUs; where it holds none, as many as its part of all CPUs is of all GPUs. In a
    cluster without GPUs: thousandths of cores."""
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


def lost(running: Running, now: datetime, weight: Callable[[Placement], int]) -> int:
    """What ending it now loses: the time since its newest checkpoint, or since it began, for all that it holds."""
    since = max((at for at in (running.started_at, running.saved_at) if at is not None), default=None)
    if since is None or since >= now:
        return 0
    return weight(running.placement) * int((now - since).total_seconds() * 1000)


class Search:
    """Looks for the cheapest victims of one gang.

    capacity, accounts: the world as it will be once all that was asked to end has; what the search changes in them it undoes.
    fits: whether the gang would really start once these victims are gone (where, or None).
    """

    def __init__(self, gang: Gang, capacity: Capacity, accounts: Accounts) -> None:
        self._gang, self._capacity, self._accounts = gang.sized([role.fewest for role in gang.roles]), capacity, accounts

    def cheapest(self, victims: Sequence[Victim]) -> list[Victim] | None:
        """A set that lets the gang start and of which nobody can be spared; the cheapest of all when there are few to choose
        from. None where all of them together would not do, or the gang fits without any."""
        ranked = sorted(victims, key=lambda victim: victim.key)
        if len(ranked) <= EXACT:
            return self._exact(ranked)
        return self._near(ranked)

    def place(self, victims: Sequence[Victim]) -> Placement | None:
        """Where the gang goes when these are gone, None where they may not all be taken or do not suffice."""
        capacity, accounts = self._capacity, self._accounts
        gone: list[Placement] = []
        try:
            for victim in _smallest_first(victims):
                if victim.reclaimed and not accounts.owes(victim.running.gang.queue, self._gang):
                    return None
                placement = victim.running.placement
                accounts.credit(placement)
                capacity.give_back(placement)
                gone.append(placement)
            if accounts.refusal(self._gang) is not None:
                return None
            return capacity.place(self._gang, closed_models=accounts.closed_models(self._gang))
        finally:
            for placement in gone:
                capacity.take(placement)
                accounts.charge(placement)

    def _exact(self, ranked: list[Victim]) -> list[Victim] | None:
        """Set after set, the cheapest first; of equally cheap ones the smaller, then by ids."""
        for tries, chosen in enumerate(_by_cost(ranked)):
            if self.place(chosen) is not None:
                return self._spared(chosen)
            if tries == EXACT_TRIES:
                return self._near(ranked)
        return None

    def _near(self, ranked: list[Victim]) -> list[Victim] | None:
        """The better of two ways to add one after another: the cheapest first, and the cheapest for its size first."""
        found = [self._greedy(ranked), self._greedy(sorted(ranked, key=_by_size))]
        return min((chosen for chosen in found if chosen), key=_cost, default=None)

    def _greedy(self, ranked: list[Victim]) -> list[Victim] | None:
        """The shortest beginning of the list that suffices, less all that can be spared."""
        allowed = self._legal(ranked)
        low, high = 0, 1
        place = self._place_first(allowed, high)
        while place is None:
            if high >= len(allowed):
                return None
            low, high = high, min(high * 2, len(allowed))
            place = self._place_first(allowed, high)
        while high - low > 1:
            middle = (low + high) // 2
            found = self._place_first(allowed, middle)
            low, high, place = (low, middle, found) if found is not None else (middle, high, place)
        nodes = {assignment.node for assignment in place.assignments}
        near = [victim for victim in allowed[:high] if any(a.node in nodes for a in victim.running.placement.assignments)]
        if self.place(near) is None:  # others had to go for the queue's sake
            near = allowed[:high]
        return self._spared(near)

    def _legal(self, ranked: Sequence[Victim]) -> list[Victim]:
        """Without those whose queue borrows no more once the ones before are gone."""
        accounts, allowed = self._accounts, []
        for victim in ranked:
            if not victim.reclaimed or accounts.owes(victim.running.gang.queue, self._gang):
                accounts.credit(victim.running.placement)
                allowed.append(victim)
        for victim in allowed:
            accounts.charge(victim.running.placement)
        return allowed

    def _place_first(self, allowed: Sequence[Victim], count: int) -> Placement | None:
        capacity, accounts = self._capacity, self._accounts
        gone = [victim.running.placement for victim in allowed[:count]]
        for placement in gone:
            capacity.give_back(placement)
            accounts.credit(placement)
        try:
            if accounts.refusal(self._gang) is not None:
                return None
            return capacity.place(self._gang, closed_models=accounts.closed_models(self._gang))
        finally:
            for placement in gone:
                capacity.take(placement)
                accounts.charge(placement)

    def _spared(self, chosen: Sequence[Victim]) -> list[Victim]:
        """Without each that the others make up for, the most expensive first."""
        kept = list(chosen)
        for victim in sorted(chosen, key=lambda one: one.key, reverse=True):
            rest = [one for one in kept if one is not victim]
            if rest and self.place(rest) is not None:
                kept = rest
        return kept


def _smallest_first(victims: Sequence[Victim]) -> list[Victim]:
    """So that a queue is below its guarantee as late as can be."""
    return sorted(
        victims, key=lambda victim: (sum(len(a.gpus) * a.gpu_milli for a in victim.running.placement.assignments), victim.key)
    )


def _by_size(victim: Victim) -> tuple[float, GangId]:
    size = sum(len(a.gpus) * a.gpu_milli for a in victim.running.placement.assignments)
    return victim.lost / max(size, 1), victim.running.gang.id


def _cost(victims: Sequence[Victim]) -> tuple[int, int, list[GangId]]:
    return sum(victim.lost for victim in victims), len(victims), sorted(victim.running.gang.id for victim in victims)


def _by_cost(ranked: Sequence[Victim]) -> Iterator[list[Victim]]:
    """All sets but the empty one, by what they cost together: each is made from a cheaper one by adding the next victim, or by
    putting the next in place of the last."""
    if not ranked:
        return
    heap: list[tuple[tuple[int, int, list[GangId]], tuple[int, ...]]] = [(_cost(ranked[:1]), (0,))]
    while heap:
        _, chosen = heappop(heap)
        yield [ranked[at] for at in chosen]
        following = chosen[-1] + 1
        if following < len(ranked):
            for more in ((*chosen, following), (*chosen[:-1], following)):
                heappush(heap, (_cost([ranked[at] for at in more]), more))

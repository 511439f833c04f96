"""Who may be asked to make room for whom, and who of them is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from hopyard.domain.cluster import Running
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.scheduler.cycle.standing import Standing
from hopyard.scheduler.cycle.victims import Search, Victim, lost, weight
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.hope import Hope
from hopyard.scheduler.service import CLASSES, service_class

# the tier of lower priorities and of what was lent; those that only take turns come after it
BY_RIGHT = -CLASSES


@dataclass(frozen=True, slots=True)
class _Claim:
    """What decides who may be asked to make room for a gang."""

    queue: QueueName
    priority: int
    service_class: int
    owed: frozenset[QueueName]


class Preemptor:
    """Of one turn. It looks at the world as it will be once all that was asked to end has ended, and those
    for whom it was asked have started.

    Each of these is a law, and together they leave no two gangs that preempt each other in turn:
    - a run of lower priority in the same queue gives way, never one of the same priority;
    - a run that its queue started with what others are sure of gives way to a gang within its own queue's
      guarantee, which is therefore not borrowed itself (see `Borrowed`): so who was preempted cannot reclaim
      in turn;
    - where the queue slices time, a run gives way to one of the same priority that was served much less.
    """

    def __init__(self, standing: Standing, capacity: Capacity, accounts: Accounts) -> None:
        """capacity, accounts: as they are now, what starts in this turn included; it is told of what starts
        from then on."""
        self._standing, self._now = standing, standing.snapshot.now
        self._queues = standing.snapshot.queues.queues
        self._capacity, self.accounts = capacity.copy(), accounts.copy()
        self._left: set[GangId] = set()
        self._askable: dict[_Claim, list[tuple[int, Running]]] = {}
        self._alike: dict[_Claim, list[Victim]] = {}
        self._hopes: dict[_Claim, Hope] = {}
        self._emptied: dict[_Claim, Capacity] = {}
        self._debtors: dict[tuple[QueueName, tuple[str, ...]], frozenset[QueueName]] = {}
        self._helps: dict[tuple[_Claim, object], bool] = {}
        self.leave(standing.stopping.values())

    def leave(self, runs: Iterable[Running]) -> None:
        """They were asked to end."""
        for running in runs:
            if running.gang.id not in self._left:
                self._left.add(running.gang.id)
                self._capacity.give_back(running.placement)
                self.accounts.credit(running.placement)
                self._forget()

    def starts(self, placement: Placement) -> None:
        """It was placed, or will be once others have left."""
        self._capacity.take(placement)
        self.accounts.charge(placement)
        self._forget()

    def _forget(self) -> None:
        for known in (self._askable, self._alike, self._hopes, self._emptied, self._helps, self._debtors):
            known.clear()

    def may(self, queue: QueueName, priority: int) -> bool:
        """Whether there is anybody at all who might have to make room for gangs of this priority in the
        queue."""
        known = self._queues.get(queue)
        if known is None:
            return False
        if known.preempts_lower or known.time_slices:
            lowest = self._standing.lowest_priority(queue)
            if lowest is not None and (known.time_slices or lowest < priority):
                return True
        return self.accounts.lends(queue)

    def victims(self, gang: Gang, *, not_on: frozenset[NodeId] = frozenset()) -> list[Victim]:
        """All who may be asked to make room for it. not_on: nodes to keep out of."""
        claim = self._claim(gang)
        found = self._alike.get(claim)
        if found is None:
            found = self._alike[claim] = [
                Victim(running, self._lost(running), tier) for tier, running in self._asked_by(gang, claim)
            ]
        return (
            [victim for victim in found if not not_on.intersection(_nodes(victim.running))]
            if not_on
            else found
        )

    def _asked_by(self, gang: Gang, claim: _Claim) -> list[tuple[int, Running]]:
        """All who may be asked, with their tiers."""
        found = self._askable.get(claim)
        if found is None:
            found = self._askable[claim] = list(self._look_whom(gang, claim))
        return found

    def _look_whom(self, gang: Gang, claim: _Claim) -> Iterator[tuple[int, Running]]:
        yield from self._yielding(gang)
        for owing in sorted(claim.owed):
            for running in self._standing.borrowed.by(owing, gang.queue):
                if self._may_leave(running):
                    yield BY_RIGHT, running

    def helps(self, gang: Gang) -> bool:
        """Whether the gang would have room, whatever its queue may use, if everybody left who may be asked.
        Known for all of its claim and shape at once, and much cheaper than to look for those who suffice."""
        claim = self._claim(gang)
        key = claim, (gang.roles, gang.topology)
        if key not in self._helps:
            smallest = gang.sized([role.fewest for role in gang.roles])
            self._helps[key] = self._hope(gang, claim).holds(smallest) and self._holds(smallest, claim)
        return self._helps[key]

    def _hope(self, gang: Gang, claim: _Claim) -> Hope:
        """As `_holds`, but hopeful and much cheaper still."""
        found = self._hopes.get(claim)
        if found is None:
            found = self._hopes[claim] = Hope(
                self._capacity, [one.placement for _, one in self._asked_by(gang, claim)]
            )
        return found

    def _holds(self, gang: Gang, claim: _Claim) -> bool:
        emptied = self._emptied.get(claim)
        if emptied is None:
            emptied = self._emptied[claim] = self._capacity.copy()
            emptied.give_back_all(running.placement for _, running in self._asked_by(gang, claim))
        return emptied.place(gang, score="first-fit") is not None

    def _claim(self, gang: Gang) -> _Claim:
        sliced = service_class(gang, gang.served_s) if self._queues[gang.queue].time_slices else 0
        return _Claim(gang.queue, gang.priority, sliced, self._owed(gang))

    def _owed(self, gang: Gang) -> frozenset[QueueName]:
        lender, names = self.accounts.lender(gang)
        if lender is None:
            return frozenset()
        key = lender, tuple(names)
        if key not in self._debtors:
            self._debtors[key] = self.accounts.debtors(lender, names)
        return self._debtors[key]

    def find(
        self, gang: Gang, victims: Sequence[Victim], *, not_on: frozenset[NodeId] = frozenset()
    ) -> tuple[list[Running], Placement] | None:
        """Whom of these to ask, and where the gang will go; None where it would not help, or all will be well
        without."""
        capacity = self._capacity
        if not_on:
            capacity = capacity.copy()
            capacity.close(not_on)
        search = Search(gang, capacity, self.accounts)
        if search.place(()) is not None:
            return None
        found = None
        for few in _tiers(victims):
            found = search.cheapest(few)
            if found is not None:
                break
        place = None if found is None else search.place(found)
        if found is None or place is None:
            return None
        runs = [victim.running for victim in found]
        return (
            (runs, place)
            if all(run.gang.queue == gang.queue for run in runs) or self._only_lent(gang, place)
            else None
        )

    def _only_lent(self, gang: Gang, place: Placement) -> bool:
        """Whether what others are sure of and its own lender is not is free where it goes, and allowed,
        before anybody leaves. Else those who leave could take that back from it in turn: of two queues one is
        sure of GPUs, the other of CPUs, and their runs ask for both."""
        names = self.accounts.not_lent(gang)
        return not names or (
            self._capacity.is_free(place, names) and not self.accounts.refuses(place.gang, names)
        )

    def why(self, running: Running, gang: Gang) -> str:
        """A sentence for the one who has to leave."""
        if running.gang.queue != gang.queue:
            lender = self.accounts.lender(gang)[0] or gang.queue
            return (
                f"queue {running.gang.queue} uses more than its guarantee; run {gang.id} takes back "
                f"what queue {lender} lent"
            )
        if running.gang.priority < gang.priority:
            return f"run {gang.id} has priority {gang.priority}, this one {running.gang.priority}"
        return f"run {gang.id} was served much less so far, and queue {gang.queue} slices time"

    def _yielding(self, gang: Gang) -> list[tuple[int, Running]]:
        """Of its own queue, with tiers: lower priorities, then those that were served most."""
        queue, found = self._queues[gang.queue], []
        lowest = self._standing.lowest_priority(gang.queue) if queue.preempts_lower else None
        if lowest is not None and lowest < gang.priority:
            found += [
                (BY_RIGHT, running)
                for running in self._there(gang.queue)
                if running.gang.priority < gang.priority
            ]
        if queue.time_slices:
            waits = service_class(gang, gang.served_s)
            for yields_to, running in self._standing.slices.giving_way(
                gang.queue, gang.priority, waits, self._now
            ):
                if running.gang.id not in self._left:
                    found.append((-yields_to, running))
        return found

    def slices_in_s(self, gang: Gang) -> float | None:
        """In how many seconds another run will give way to it; None where none will."""
        waits = service_class(gang, gang.served_s)
        return self._standing.slices.next_in_s(gang.queue, gang.priority, waits, self._now)

    def _there(self, queue: QueueName) -> list[Running]:
        return [
            running for running in self._standing.by_queue.get(queue, {}).values() if self._may_leave(running)
        ]

    def _may_leave(self, running: Running) -> bool:
        return running.gang.preemptible and running.gang.id not in self._left

    @cached_property
    def _weight(self) -> Callable[[Placement], int]:
        return weight(node for node in self._standing.snapshot.nodes.values() if node.open)

    def _lost(self, running: Running) -> int:
        return lost(running, self._now, self._weight)


def _tiers(victims: Sequence[Victim]) -> Iterator[list[Victim]]:
    """The best tier, the best two, and so on."""
    for tier in sorted({victim.tier for victim in victims}):
        yield [victim for victim in victims if victim.tier <= tier]


def _nodes(running: Running) -> set[NodeId]:
    return {assignment.node for assignment in running.placement.assignments}

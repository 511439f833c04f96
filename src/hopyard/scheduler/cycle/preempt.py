"""Who may be asked to make room for whom, and who of them is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hopyard.domain.cluster import Running
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.scheduler.cycle.standing import Standing
from hopyard.scheduler.cycle.victims import Search, Victim, lost, weight
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.service import gives_way


class Preemptor:
    """Of one turn. It looks at the world as it will be once all that was asked to end has ended, and those for whom it was
    asked have started.

    Each of these is a law, and together they leave no two gangs that preempt each other in turn:
    - a run of lower priority in the same queue gives way, never one of the same priority;
    - a run of a queue that borrows gives way to a gang within its own queue's guarantee, and only as long as its queue still
      borrows: so who was preempted cannot reclaim in turn, since the other does not borrow;
    - where the queue slices time, a run gives way to one of the same priority that was served much less.
    """

    def __init__(self, standing: Standing, capacity: Capacity, accounts: Accounts) -> None:
        """capacity, accounts: as they are now, what starts in this turn included; it is told of what starts from then on."""
        self._standing, self._now = standing, standing.snapshot.now
        self._queues = standing.snapshot.queues.queues
        self._capacity, self.accounts = capacity.copy(), accounts.copy()
        self._weight = weight(standing.snapshot.nodes.values())
        self._left: set[GangId] = set()
        self._lowest: dict[QueueName, int | None] = {}
        self.leave(standing.stopping.values())

    def leave(self, runs: Iterable[Running]) -> None:
        """They were asked to end."""
        for running in runs:
            if running.gang.id not in self._left:
                self._left.add(running.gang.id)
                self._capacity.give_back(running.placement)
                self.accounts.credit(running.placement)

    def starts(self, placement: Placement) -> None:
        """It was placed, or will be once others have left."""
        self._capacity.take(placement)
        self.accounts.charge(placement)

    def may(self, queue: QueueName, priority: int) -> bool:
        """Whether there is anybody at all who might have to make room for gangs of this priority in the queue."""
        known = self._queues.get(queue)
        if known is None:
            return False
        if known.preempts_lower or known.time_slices:
            lowest = self._lowest_in(queue)
            if lowest is not None and (known.time_slices or lowest < priority):
                return True
        return self.accounts.lends(queue)

    def victims(self, gang: Gang, *, not_on: frozenset[NodeId] = frozenset()) -> list[Victim]:
        """All who may be asked to make room for it. not_on: nodes to keep out of."""
        queue, found = self._queues[gang.queue], []
        if queue.preempts_lower or queue.time_slices:
            found += [
                Victim(running, self._lost(running), False) for running in self._there(gang.queue) if self._yields(running, gang)
            ]
        for owing in sorted(self.accounts.owed(gang)):
            found += [Victim(running, self._lost(running), True) for running in self._there(owing)]
        return [victim for victim in found if not not_on.intersection(_nodes(victim.running))] if not_on else found

    def find(
        self, gang: Gang, victims: Sequence[Victim], *, not_on: frozenset[NodeId] = frozenset()
    ) -> tuple[list[Running], Placement] | None:
        """Whom of these to ask, and where the gang will go; None where it would not help, or all will be well without."""
        capacity = self._capacity
        if not_on:
            capacity = capacity.copy()
            capacity.close(not_on)
        search = Search(gang, capacity, self.accounts)
        if search.place(()) is not None:
            return None
        found = search.cheapest(victims)
        place = None if found is None else search.place(found)
        return None if found is None or place is None else ([victim.running for victim in found], place)

    def why(self, running: Running, gang: Gang) -> str:
        """A sentence for the one who has to leave."""
        if running.gang.queue != gang.queue:
            return (
                f"queue {running.gang.queue} uses more than its guarantee; run {gang.id} takes back what queue {gang.queue} lent"
            )
        if running.gang.priority < gang.priority:
            return f"run {gang.id} has priority {gang.priority}, this one {running.gang.priority}"
        return f"run {gang.id} was served much less so far, and queue {gang.queue} slices time"

    def _yields(self, running: Running, gang: Gang) -> bool:
        queue = self._queues[gang.queue]
        if queue.preempts_lower and running.gang.priority < gang.priority:
            return True
        return queue.time_slices and running.gang.priority == gang.priority and gives_way(running, gang, self._now)

    def _there(self, queue: QueueName) -> list[Running]:
        return [
            running
            for running in self._standing.by_queue.get(queue, {}).values()
            if running.gang.preemptible and running.gang.id not in self._left
        ]

    def _lowest_in(self, queue: QueueName) -> int | None:
        if queue not in self._lowest:
            self._lowest[queue] = min((running.gang.priority for running in self._there(queue)), default=None)
        return self._lowest[queue]

    def _lost(self, running: Running) -> int:
        return lost(running, self._now, self._weight)


def _nodes(running: Running) -> set[NodeId]:
    return {assignment.node for assignment in running.placement.assignments}

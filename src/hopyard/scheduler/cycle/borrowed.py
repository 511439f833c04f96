"""Which runs a queue started with what others are sure of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hopyard.domain.amounts import placed
from hopyard.domain.cluster import Node, Running
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import Amounts, QueueTree
from hopyard.domain.quota import guarantees, path


class Borrowed:
    """Of one state of a cluster; what is asked for is worked out once.

    What a queue started first is covered by its guarantee, and stays so while others come and go; what it started beyond is
    borrowed. So a gang that took back what its queue had lent never has to give way to the queue that it took it from, however
    much its own queue borrows later.
    """

    def __init__(
        self,
        queues: QueueTree,
        nodes: Mapping[NodeId, Node],
        running: Mapping[QueueName, Mapping[GangId, Running]],
        left: Collection[GangId],
    ) -> None:
        """running: by the queue of the gang. left: of those, who was asked to end already."""
        self._queues, self._nodes, self._running, self._left = queues, nodes, running, left
        self._sure = guarantees(queues)
        self._named = frozenset(name for amounts in self._sure.values() for name, amount in amounts.items() if amount)
        self._beyond: dict[QueueName, frozenset[GangId]] = {}

    def by(self, queue: QueueName, lender: QueueName) -> list[Running]:
        """Runs of a leaf that are beyond the guarantee at every level that it does not share with another leaf."""
        shared = path(self._queues, lender)
        apart = [self.beyond(level) for level in path(self._queues, queue) if level not in shared]
        there = self._running.get(queue, {})
        return [running for gang, running in there.items() if gang not in self._left and all(gang in beyond for beyond in apart)]

    def beyond(self, level: QueueName) -> frozenset[GangId]:
        """Of the runs of all queues below it: those that were placed when its guarantee was used up, the older ones counted
        first."""
        found = self._beyond.get(level)
        if found is None:
            found = self._beyond[level] = frozenset(self._after(self._sure.get(level, {}), self._below(level)))
        return found

    def _below(self, level: QueueName) -> Iterable[Running]:
        """In the order in which they were placed."""
        found = [
            one
            for queue, there in self._running.items()
            if queue == level or level in path(self._queues, queue)
            for one in there.values()
            if one.gang.id not in self._left
        ]
        return sorted(found, key=lambda one: (one.placed_at, one.gang.id))

    def _after(self, sure: Amounts, runs: Iterable[Running]) -> Iterable[GangId]:
        covered = dict.fromkeys(self._named, 0)
        for running in runs:
            amounts = [(name, amount) for name, amount in placed(running.placement, self._nodes).items() if name in covered]
            if all(covered[name] + amount <= sure.get(name, 0) for name, amount in amounts):
                for name, amount in amounts:
                    covered[name] += amount
            else:
                yield running.gang.id

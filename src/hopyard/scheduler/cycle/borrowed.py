"""Which runs a queue started with what others are sure of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from hopyard.domain.amounts import placed
from hopyard.domain.cluster import Node, Running
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import GPU_OF, Amounts, QueueTree
from hopyard.domain.quota import guarantees, path

Order = tuple[datetime, int, datetime, GangId]
Use = list[tuple[str, int]]  # of what guarantees name
Entry = tuple[Order, Use]  # of a run; no two have the same order


class Borrowed:
    """What is asked for is worked out once, and again only when it is said to have changed.

    What a queue started first is covered by its guarantee, and stays so while others come and go; what it started beyond is
    borrowed. So a gang that took back what its queue had lent never has to give way to the queue that it took it from, however
    much its own queue borrows later. Runs that were asked to end count as gone.
    """

    def __init__(
        self, queues: QueueTree, nodes: Mapping[NodeId, Node], running: Mapping[QueueName, Mapping[GangId, Running]]
    ) -> None:
        """running: by the queue of the gang; not copied."""
        self._queues, self._running = queues, running
        self._sure = guarantees(queues)
        self._named = frozenset(name for amounts in self._sure.values() for name, amount in amounts.items() if amount)
        by_model = any(name.startswith(GPU_OF) for name in self._named)
        self._cards: Mapping[NodeId, Node] = nodes if by_model else {}  # where no model is named, nobody need look at cards
        self._beyond: dict[QueueName, frozenset[GangId]] = {}
        self._uses: dict[QueueName, dict[GangId, Use]] = {}
        self._entries: dict[QueueName, list[Entry]] = {}  # of those directly in a queue, in the order in which they were placed

    def changed(self, queue: QueueName) -> None:
        """Runs of this queue began, ended, or were asked to end."""
        self._entries.pop(queue, None)
        for level in path(self._queues, queue) if self._beyond else ():
            self._beyond.pop(level, None)

    def by(self, queue: QueueName, lender: QueueName) -> list[Running]:
        """Runs of a queue that are beyond the guarantee at every level that it does not share with another one."""
        shared = path(self._queues, lender)
        apart = [self.beyond(level) for level in path(self._queues, queue) if level not in shared]
        there = self._running.get(queue, {})
        if not apart:
            return []
        return [there[gang] for gang in there.keys() & frozenset.intersection(*apart)]

    def beyond(self, level: QueueName) -> frozenset[GangId]:
        """Of the runs of all queues below it: those that were placed when its guarantee was used up, the older ones counted
        first."""
        found = self._beyond.get(level)
        if found is None:
            found = self._beyond[level] = frozenset(self._after(self._sure.get(level, {}), self._below(level)))
        return found

    def _below(self, level: QueueName) -> list[Entry]:
        """In the order in which they were placed."""
        found = [
            entry
            for queue in self._running
            if queue == level or level in path(self._queues, queue)
            for entry in self._directly_in(queue)
        ]
        found.sort()  # few ordered stretches after each other, which costs little more than to merge them
        return found

    def _directly_in(self, queue: QueueName) -> list[Entry]:
        found = self._entries.get(queue)
        if found is None:
            there = self._running.get(queue, {}).values()
            found = self._entries[queue] = sorted((_as_placed(one), self._use(one)) for one in there if not one.stopping)
        return found

    def _after(self, sure: Amounts, entries: Iterable[Entry]) -> Iterable[GangId]:
        left = {name: sure.get(name, 0) for name in self._named}
        for (_, _, _, gang), use in entries:
            for name, amount in use:
                if amount > left[name]:
                    yield gang
                    break
            else:
                for name, amount in use:
                    left[name] -= amount

    def _use(self, running: Running) -> Use:
        """Of what guarantees name. What a gang holds never changes while it holds it, and neither do its nodes' cards while
        this stands."""
        of_queue = self._uses.setdefault(running.gang.queue, {})
        found = of_queue.get(running.gang.id)
        if found is None:
            amounts = placed(running.placement, self._cards)
            found = of_queue[running.gang.id] = [(name, amount) for name, amount in amounts.items() if name in self._named]
        return found

    def ended(self, running: Running) -> None:
        """What it used is forgotten."""
        of_queue = self._uses.get(running.gang.queue, {})
        of_queue.pop(running.gang.id, None)
        self.changed(running.gang.queue)


def _as_placed(running: Running) -> Order:
    """Of those that were placed at one time, whoever comes first in a queue."""
    gang = running.gang
    return running.placed_at, -gang.priority, gang.submitted_at, gang.id

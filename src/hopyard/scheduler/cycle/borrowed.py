"""Which runs a queue started with what others are sure of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from hopyard.domain.amounts import placed
from hopyard.domain.cluster import Node, Running
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import GPU_OF, QueueTree
from hopyard.scheduler.fairness.ledger import Ledger
from hopyard.scheduler.fairness.limits import Limits

Order = tuple[datetime, int, datetime, GangId]
Use = list[tuple[str, int]]  # of what guarantees name
Entry = tuple[Order, Use, QueueName]  # of a run; no two have the same order


class Borrowed:
    """What is asked for is worked out once, and again only when it is said to have changed.

    What a queue started first is covered by its guarantee, and stays so while others come and go; what it
    started beyond is borrowed. Of a queue with others below it, what those started within their own
    guarantees is covered before what they borrowed, or whoever of them came first would use up what the other
    is sure of, and neither had borrowed from those outside. So a gang that took back what its queue had lent
    never has to give way to the queue that it took it from, however much its own queue borrows later. Runs
    that were asked to end count as gone. Of a guarantee there is for a run what nobody below keeps
    (lend_limit), but for what its own queue, or one above it, does.
    """

    def __init__(
        self,
        queues: QueueTree,
        nodes: Mapping[NodeId, Node],
        running: Mapping[QueueName, Mapping[GangId, Running]],
    ) -> None:
        """running: by the queue of the gang; not copied."""
        self._running = running
        limits = Limits.of(queues)
        # of a queue that was removed: itself, without a guarantee, so all that it uses is borrowed
        self._path = limits.path
        self._sure, self._kept_names, self._idle = limits.sure, limits.kept_names, Ledger(limits)
        self._named = limits.guaranteed
        by_model = any(name.startswith(GPU_OF) for name in self._named)
        # where no model is named, nobody need look at cards
        self._cards: Mapping[NodeId, Node] = nodes if by_model else {}
        self._beyond: dict[QueueName, frozenset[GangId]] = {}
        self._uses: dict[QueueName, dict[GangId, Use]] = {}
        # of those directly in a queue, in the order in which they were placed
        self._entries: dict[QueueName, list[Entry]] = {}

    def changed(self, queue: QueueName) -> None:
        """Runs of this queue began, ended, or were asked to end."""
        self._entries.pop(queue, None)
        for level in self._path(queue) if self._beyond else ():
            self._beyond.pop(level, None)

    def by(self, queue: QueueName, lender: QueueName) -> list[Running]:
        """Runs of a queue that are beyond the guarantee at every level that it does not share with another
        one."""
        shared = self._path(lender)
        apart = [self.beyond(level) for level in self._path(queue) if level not in shared]
        there = self._running.get(queue, {})
        if not apart:
            return []
        return [there[gang] for gang in there.keys() & frozenset.intersection(*apart)]

    def beyond(self, level: QueueName) -> frozenset[GangId]:
        """Of the runs of all queues below it: those that were placed when its guarantee was used up, the
        older ones counted first."""
        found = self._beyond.get(level)
        if found is None:
            found = self._beyond[level] = frozenset(self._after(level, self._below(level)))
        return found

    def _below(self, level: QueueName) -> list[Entry]:
        """In the order in which they are covered."""
        within: list[Entry] = []
        beyond: list[Entry] = []
        for queue in self._running:
            if queue == level:
                within += self._directly_in(queue)
            elif level in (levels := self._path(queue)):
                late = self.beyond(levels[levels.index(level) - 1])
                for entry in self._directly_in(queue):
                    (beyond if entry[0][-1] in late else within).append(entry)
        within.sort()  # few ordered stretches after each other, which costs little more than to merge them
        beyond.sort()
        return within + beyond

    def _directly_in(self, queue: QueueName) -> list[Entry]:
        found = self._entries.get(queue)
        if found is None:
            there = self._running.get(queue, {}).values()
            found = self._entries[queue] = sorted(
                (_as_placed(one), self._use(one), queue) for one in there if not one.stopping
            )
        return found

    def _after(self, level: QueueName, entries: Iterable[Entry]) -> Iterable[GangId]:
        sure, kept = self._sure.get(level, {}), self._idle
        left = {
            name: sure.get(name, 0) - (kept.below(level, name) if name in self._kept_names else 0)
            for name in self._named
        }
        spare: dict[tuple[QueueName, str], int] = {}  # what queues below keep and do not use
        for (_, _, _, gang), use, queue in entries:
            own = self._kept_for(queue, level, use, spare) if self._kept_names else {}
            rest = [(name, amount - sum(own.get(name, {}).values())) for name, amount in use] if own else use
            for name, amount in rest:
                if amount > left[name]:
                    yield gang
                    break
            else:
                for name, amount in rest:
                    left[name] -= amount
                for name, parts in own.items():
                    for at, part in parts.items():
                        spare[at, name] -= part

    def _kept_for(
        self, queue: QueueName, level: QueueName, use: Use, spare: dict[tuple[QueueName, str], int]
    ) -> dict[str, dict[QueueName, int]]:
        """By name, what of this its own queue, or one above it below that level, keeps and has left."""
        found: dict[str, dict[QueueName, int]] = {}
        for name, left in use:
            for at in self._path(queue):
                if at == level:
                    break
                part = min(left, spare.setdefault((at, name), self._idle.spare(at, name)))
                if part:
                    found.setdefault(name, {})[at] = part
                    left -= part  # noqa: PLW2901 - what those above are asked for
        return found

    def _use(self, running: Running) -> Use:
        """Of what guarantees name. What a gang holds never changes while it holds it, and neither do its
        nodes' cards while this stands."""
        of_queue = self._uses.setdefault(running.gang.queue, {})
        found = of_queue.get(running.gang.id)
        if found is None:
            amounts = placed(running.placement, self._cards)
            found = of_queue[running.gang.id] = [
                (name, amount) for name, amount in amounts.items() if name in self._named
            ]
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

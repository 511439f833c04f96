"""The order in which one turn looks at the gangs that wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set

from hopyard.domain.gang import Gang
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Queue
from hopyard.scheduler.cycle.fair_sharing import FairSharingOrder
from hopyard.scheduler.cycle.pending_gangs import GangClass, GangGroup, PendingGangs
from hopyard.scheduler.cycle.queue_iterator import QueueIterator
from hopyard.scheduler.quota.quota_usage import QuotaUsage


class PendingIterator:
    """Between queues as `FairSharingOrder` says; in a queue by priority, service class,
    `QuotaUsage.user_key`, submission, id. Both follow what is charged during the turn.

    What is passed over is so for the rest of the turn: whoever was refused once would be again, since room
    only shrinks.
    """

    def __init__(
        self,
        pending_gangs: PendingGangs,
        queues: Mapping[QueueName, Queue],
        leaf_queues: Iterable[QueueName],
        quota_usage: QuotaUsage,
        is_held_back: Callable[[QueueName, str, GangClass], bool],
    ) -> None:
        """is_held_back: whether those of this queue, user and shape are passed over for now, which may become
        so during the turn."""
        self._skipped: set[GangClass] = set()
        self._queue_iterators = {
            queue: QueueIterator(queue, pending_gangs.queues[queue], quota_usage, self._skipped, is_held_back)
            for queue in leaf_queues
            if queue in pending_gangs.queues
        }
        self._full_classes: Set[GangClass] = frozenset()
        self._droppable_queues: dict[QueueName, QueueIterator] | None = None
        self._queue_order = FairSharingOrder(queues, quota_usage)
        self._changed_queues: dict[QueueName, None] = dict.fromkeys(self._queue_iterators)

    def head(self) -> Gang | None:
        """Who is next; the same one until something is said of it."""
        while True:
            if self._changed_queues:
                self._queue_order.update_heads(
                    {queue: self._queue_iterators[queue].head() for queue in self._changed_queues}
                )
                self._changed_queues.clear()
            found = self._queue_order.head()
            if found is None or self._queue_iterators[found.queue].head() is found:
                return found
            self._changed_queues[found.queue] = None  # it was passed over since

    def record_charge(self, queue: QueueName) -> None:
        """Somebody in the queue starts, or is promised a start."""
        if queue in self._queue_iterators:
            self._changed_queues[queue] = None

    def advance(self, gang: Gang) -> None:
        """The head was decided on its own, unless it has been passed over since; accounts may have
        changed."""
        leaf = self._queue_iterators[gang.queue]
        if leaf.head() is gang:
            leaf.advance()
        self._changed_queues[gang.queue] = None

    def skip_group(self, gang: Gang, gang_group: GangGroup) -> None:
        """Look no more at those of this kind of its user in its queue, as long as they are of its rank."""
        leaf = self._queue_iterators[gang.queue]
        if leaf.head() is gang:
            leaf.skip_group(gang_group)
        self._changed_queues[gang.queue] = None

    def skip_user(self, gang: Gang, gang_class: GangClass) -> None:
        """Look no more at those of this shape of its user in its queue."""
        self._queue_iterators[gang.queue].skip_user(gang.user, gang_class)
        self._changed_queues[gang.queue] = None

    def skip_queue(self, queue: QueueName, gang_class: GangClass) -> None:
        """Look no more at those of this shape in this queue."""
        self._queue_iterators[queue].skipped.add(gang_class)
        self._changed_queues[queue] = None

    def skip_all(self, gang_classes: Iterable[GangClass]) -> None:
        """Look no more at those of these shapes in any queue."""
        self._skipped.update(gang_classes)
        self._changed_queues.update(
            dict.fromkeys(queue for queue, leaf in self._queue_iterators.items() if leaf.is_stale())
        )

    def close(self, queues: Iterable[QueueName]) -> None:
        """Look no more at anybody in these."""
        for queue in queues:
            if queue in self._queue_iterators:
                self._queue_iterators[queue].close()
                self._changed_queues[queue] = None

    def skip_classes(
        self,
        gang_classes: Set[GangClass],
        queues_to_search: Callable[[list[tuple[QueueName, int]]], Collection[QueueName]],
    ) -> None:
        """From now on, look no more at those of these shapes, in any queue but those that are patient. The
        set may grow: see `grown`. queues_to_search: of all queues with the highest priority that waits in
        each."""
        chosen = frozenset(
            queues_to_search([(queue, leaf.priority) for queue, leaf in self._queue_iterators.items()])
        )
        self._full_classes, self._droppable_queues = gang_classes, {}
        for queue in self._queue_iterators.keys() - chosen:
            self._drop_queue(queue)

    def may_still_preempt(self, queue: QueueName) -> bool:
        return self._droppable_queues is None or queue not in self._droppable_queues

    def add_skipped_class(self, gang_class: GangClass) -> None:
        """The set of shapes to pass over grew by this one."""
        for queue, leaf in (self._droppable_queues or {}).items():
            if leaf.head_class is gang_class:
                self._changed_queues[queue] = None

    def drop_patient_queues(self) -> None:
        """Nobody is patient any more."""
        assert self._droppable_queues is not None
        for queue in self._queue_iterators.keys() - self._droppable_queues.keys():
            self._drop_queue(queue)

    def _drop_queue(self, queue: QueueName) -> None:
        assert self._droppable_queues is not None
        leaf = self._droppable_queues[queue] = self._queue_iterators[queue]
        leaf.no_capacity = self._full_classes
        if leaf.is_stale():
            self._changed_queues[queue] = None

    def restart(self, queues: Iterable[QueueName]) -> None:
        """In these from the first, as things are charged by now."""
        for queue in queues:
            if queue in self._queue_iterators:
                self._queue_iterators[queue].restart()
                self._changed_queues[queue] = None

    def heads(self) -> list[Gang]:
        """Who is next in each queue."""
        return [head for leaf in self._queue_iterators.values() if (head := leaf.head()) is not None]

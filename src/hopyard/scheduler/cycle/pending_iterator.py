"""The order in which one cycle examines pending gangs."""

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
    """Orders queues by `FairSharingOrder`. Inside a queue the order is priority, service class,
    `QuotaUsage.user_key`, submission time, id. Both orders follow the charges of the cycle.

    A skipped gang stays skipped for the rest of the cycle: a refused gang would be refused again, because
    free capacity only shrinks.
    """

    def __init__(
        self,
        pending_gangs: PendingGangs,
        queues: Mapping[QueueName, Queue],
        leaf_queues: Iterable[QueueName],
        quota_usage: QuotaUsage,
        is_held_back: Callable[[QueueName, str, GangClass], bool],
    ) -> None:
        """is_held_back: returns whether gangs of this queue, user and shape are skipped; the answer may
        become true during the cycle."""
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
        """Returns the next gang, and the same gang again until it is advanced or skipped."""
        while True:
            if self._changed_queues:
                self._queue_order.update_heads(
                    {queue: self._queue_iterators[queue].head() for queue in self._changed_queues}
                )
                self._changed_queues.clear()
            gang = self._queue_order.head()
            if gang is None or self._queue_iterators[gang.queue].head() is gang:
                return gang
            self._changed_queues[gang.queue] = None  # it was skipped since

    def record_charge(self, queue: QueueName) -> None:
        """Records that a gang of the queue starts, or is promised a start."""
        if queue in self._queue_iterators:
            self._changed_queues[queue] = None

    def advance(self, gang: Gang) -> None:
        """Moves past the head, unless it has been skipped since. Usage may have changed."""
        queue_iterator = self._queue_iterators[gang.queue]
        if queue_iterator.head() is gang:
            queue_iterator.advance()
        self._changed_queues[gang.queue] = None

    def skip_group(self, gang: Gang, gang_group: GangGroup) -> None:
        """Skips gangs of the head's class, user and queue that have its rank."""
        queue_iterator = self._queue_iterators[gang.queue]
        if queue_iterator.head() is gang:
            queue_iterator.skip_group(gang_group)
        self._changed_queues[gang.queue] = None

    def skip_user(self, gang: Gang, gang_class: GangClass) -> None:
        """Skips gangs of the head's shape and user in its queue."""
        self._queue_iterators[gang.queue].skip_user(gang.user, gang_class)
        self._changed_queues[gang.queue] = None

    def skip_queue(self, queue: QueueName, gang_class: GangClass) -> None:
        """Skips gangs of the head's shape in its queue."""
        self._queue_iterators[queue].skipped.add(gang_class)
        self._changed_queues[queue] = None

    def skip_all(self, gang_classes: Iterable[GangClass]) -> None:
        """Skips gangs of these shapes in all queues."""
        self._skipped.update(gang_classes)
        self._changed_queues.update(
            dict.fromkeys(
                queue for queue, queue_iterator in self._queue_iterators.items() if queue_iterator.is_stale()
            )
        )

    def close(self, queues: Iterable[QueueName]) -> None:
        """Skips all gangs of these queues."""
        for queue in queues:
            if queue in self._queue_iterators:
                self._queue_iterators[queue].close()
                self._changed_queues[queue] = None

    def skip_classes(
        self,
        gang_classes: Set[GangClass],
        queues_to_search: Callable[[list[tuple[QueueName, int]]], Collection[QueueName]],
    ) -> None:
        """Skips gangs of these shapes from now on, except in the queues that `queues_to_search` returns. It
        receives all queues, each with its highest pending priority. The set of shapes may grow (see
        `add_skipped_class`)."""
        searched = frozenset(
            queues_to_search(
                [(queue, queue_iterator.priority) for queue, queue_iterator in self._queue_iterators.items()]
            )
        )
        self._full_classes, self._droppable_queues = gang_classes, {}
        for queue in self._queue_iterators.keys() - searched:
            self._drop_queue(queue)

    def may_still_preempt(self, queue: QueueName) -> bool:
        return self._droppable_queues is None or queue not in self._droppable_queues

    def add_skipped_class(self, gang_class: GangClass) -> None:
        """Records that the set of skipped shapes grew by this one."""
        for queue, queue_iterator in (self._droppable_queues or {}).items():
            if queue_iterator.head_class is gang_class:
                self._changed_queues[queue] = None

    def drop_patient_queues(self) -> None:
        """Skips the shapes in the remaining queues too."""
        assert self._droppable_queues is not None
        for queue in self._queue_iterators.keys() - self._droppable_queues.keys():
            self._drop_queue(queue)

    def _drop_queue(self, queue: QueueName) -> None:
        assert self._droppable_queues is not None
        queue_iterator = self._droppable_queues[queue] = self._queue_iterators[queue]
        queue_iterator.no_capacity = self._full_classes
        if queue_iterator.is_stale():
            self._changed_queues[queue] = None

    def restart(self, queues: Iterable[QueueName]) -> None:
        """Starts these queues again from their first gang, with the current usage."""
        for queue in queues:
            if queue in self._queue_iterators:
                self._queue_iterators[queue].restart()
                self._changed_queues[queue] = None

    def heads(self) -> list[Gang]:
        """Returns the next gang of each queue."""
        return [
            head
            for queue_iterator in self._queue_iterators.values()
            if (head := queue_iterator.head()) is not None
        ]

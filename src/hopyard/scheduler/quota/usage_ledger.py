"""Usage by queue, at every level, and by user: sums that are updated exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Amounts
from hopyard.scheduler.quota.queue_limits import NO_AMOUNTS, QueueLimits

K = TypeVar("K")


class UsageLedger:
    """Amounts in the ledger are never changed, only replaced, so copies share them.

    `committed` of a queue is the capacity of its ancestors that queues outside may not use: the usage below
    it, and beside that the non-lendable part of its guarantee (lend_limit). Computed bottom up: committed =
    max(used, non-lendable) of a leaf, and max(sum of committed of the children, non-lendable) of any other
    queue. So the non-lendable part of a queue is counted once, and using it commits nothing more (after
    `SubtreeQuota` and the propagation of usage in Kueue's hierarchical cohorts). For resources without any
    non-lendable part, it is the usage.
    """

    __slots__ = ("_committed_below", "_limits", "_queues", "_users")

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._queues: dict[QueueName, Amounts] = {}
        self._users: dict[tuple[QueueName, str], Amounts] = {}
        self._committed_below: dict[QueueName | None, Amounts] = {}
        for queue in reversed(list(limits.non_lendable)):  # children before parents
            parent = limits.tree.queues[queue].parent
            _set_or_remove(
                self._committed_below,
                parent,
                {name: self.committed(queue, name) for name in limits.non_lendable_names},
                1,
            )

    def copy(self) -> UsageLedger:
        result = UsageLedger.__new__(UsageLedger)
        result._limits = self._limits
        result._queues, result._users, result._committed_below = (
            self._queues.copy(),
            self._users.copy(),
            self._committed_below.copy(),
        )
        return result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UsageLedger):
            return NotImplemented
        return (self._queues, self._users, self._committed_below) == (
            other._queues,
            other._users,
            other._committed_below,
        )

    __hash__ = None  # type: ignore[assignment]

    def used(self, queue: QueueName) -> Amounts:
        return self._queues.get(queue, NO_AMOUNTS)

    def used_by_user(self, queue: QueueName, user: str) -> Amounts:
        return self._users.get((queue, user), NO_AMOUNTS)

    def active_queues(self) -> list[QueueName]:
        """Returns the queues that gangs use directly, in arbitrary order. A queue with children is one of
        them only while runs continue that started before it had children."""
        child_usage: dict[QueueName, Amounts] = {}
        for queue, amounts in self._queues.items():
            found_queue = self._limits.tree.queues.get(queue)
            if found_queue is not None and found_queue.parent is not None:
                child_usage[found_queue.parent] = _add_scaled(
                    child_usage.get(found_queue.parent, NO_AMOUNTS), amounts, 1
                )
        return [
            queue for queue, amounts in self._queues.items() if child_usage.get(queue, NO_AMOUNTS) != amounts
        ]

    def users(self, queue: QueueName) -> dict[str, Amounts]:
        return {user: amounts for (owner, user), amounts in self._users.items() if owner == queue}

    def committed_below(self, queue: QueueName, resource: str) -> int:
        """Returns the usage below the queue, and the unused non-lendable amounts of its descendants."""
        table = self._committed_below if resource in self._limits.non_lendable_names else self._queues
        return table.get(queue, NO_AMOUNTS).get(resource, 0)

    def all_committed_below(self, queue: QueueName) -> Amounts:
        """Returns `committed_below` of all resources."""
        used, names = self.used(queue), self._limits.non_lendable_names
        return {**used, **{name: self.committed_below(queue, name) for name in names}} if names else used

    def committed(self, queue: QueueName, resource: str) -> int:
        return max(
            self.committed_below(queue, resource),
            self._limits.non_lendable.get(queue, NO_AMOUNTS).get(resource, 0),
        )

    def total_committed(self, resource: str) -> int:
        """Returns the committed amount of the whole cluster."""
        return self._committed_below.get(None, NO_AMOUNTS).get(resource, 0)

    def unused_non_lendable(self, queue: QueueName, resource: str) -> int:
        """Returns the unused part of the queue's non-lendable amount."""
        return self.committed(queue, resource) - self.committed_below(queue, resource)

    def request_beyond_non_lendable(self, queue: QueueName, requested: Amounts) -> Amounts:
        """Returns what a gang in or below the queue requests from the ancestors: its request without the
        unused non-lendable amount of the queue."""
        if not self._limits.non_lendable_names:
            return requested
        return {
            name: amount - min(amount, self.unused_non_lendable(queue, name))
            for name, amount in requested.items()
        }

    def add(self, queue: QueueName, user: str, amounts: Amounts, sign: int) -> None:
        """Adds the amounts to the queue and its ancestors. Sign -1 exactly undoes that."""
        limits = self._limits
        path = limits.path(queue)
        for level in path:
            _set_or_remove(self._queues, level, amounts, sign)
        _set_or_remove(self._users, (queue, user), amounts, sign)
        for level, _ in limits.user_limited_levels.get(queue, ()):
            if level != queue:
                _set_or_remove(self._users, (level, user), amounts, sign)
        if limits.non_lendable_names:
            self._commit(path, amounts, sign)

    def _commit(self, path: Sequence[QueueName], amounts: Amounts, sign: int) -> None:
        for name in self._limits.non_lendable_names:
            delta = sign * amounts.get(name, 0)
            for level in path:
                if not delta:
                    break
                before, non_lendable = (
                    self._committed_below.get(level, NO_AMOUNTS).get(name, 0),
                    self._limits.non_lendable.get(level, NO_AMOUNTS).get(name, 0),
                )
                _set_or_remove(self._committed_below, level, {name: delta}, 1)
                delta = max(before + delta, non_lendable) - max(before, non_lendable)
            if delta:
                _set_or_remove(self._committed_below, None, {name: delta}, 1)


def _set_or_remove(table: dict[K, Amounts], key: K, amounts: Amounts, sign: int) -> None:
    after = _add_scaled(table.get(key, NO_AMOUNTS), amounts, sign)
    if after:
        table[key] = after
    else:
        table.pop(key, None)


def _add_scaled(left: Amounts, right: Amounts, sign: int) -> Amounts:
    result = dict(left)
    for name, amount in right.items():
        after = result.get(name, 0) + sign * amount
        if after:
            result[name] = after
        else:
            result.pop(name, None)
    return result

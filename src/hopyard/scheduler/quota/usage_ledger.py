"""What is used, by queue at every level and by user: sums that are added to and taken from exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Amounts
from hopyard.scheduler.quota.queue_limits import NO_AMOUNTS, QueueLimits

K = TypeVar("K")


class UsageLedger:
    """The amounts in it are never changed, only replaced, so a copy shares them all.

    `committed` of a queue is what nobody outside may use of what those above it have: what is used below it,
    and beside that what it keeps of its guarantee (lend_limit). Bottom up, taken = max(used, kept) of a leaf
    and max(sum of taken right below, kept) of any other queue; so what a queue keeps is counted once, and
    using it takes nothing more (after `SubtreeQuota` and the bubbling up of usage in Kueue's hierarchical
    cohorts). Of resources of which nobody keeps any it is what is used.
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
        other = UsageLedger.__new__(UsageLedger)
        other._limits = self._limits
        other._queues, other._users, other._committed_below = (
            self._queues.copy(),
            self._users.copy(),
            self._committed_below.copy(),
        )
        return other

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
        """Queues that gangs use directly, in no order that means anything.
        A queue that has others below it is one only while runs go on that started before it had."""
        below: dict[QueueName, Amounts] = {}
        for queue, amounts in self._queues.items():
            known = self._limits.tree.queues.get(queue)
            if known is not None and known.parent is not None:
                below[known.parent] = _add_scaled(below.get(known.parent, NO_AMOUNTS), amounts, 1)
        return [queue for queue, amounts in self._queues.items() if below.get(queue, NO_AMOUNTS) != amounts]

    def users(self, queue: QueueName) -> dict[str, Amounts]:
        return {user: amounts for (of, user), amounts in self._users.items() if of == queue}

    def committed_below(self, queue: QueueName, resource: str) -> int:
        """What of it is used below the queue, and what those below it keep beside that."""
        of = self._committed_below if resource in self._limits.non_lendable_names else self._queues
        return of.get(queue, NO_AMOUNTS).get(resource, 0)

    def all_committed_below(self, queue: QueueName) -> Amounts:
        """What is used below the queue, and what those below it keep beside that."""
        used, names = self.used(queue), self._limits.non_lendable_names
        return {**used, **{name: self.committed_below(queue, name) for name in names}} if names else used

    def committed(self, queue: QueueName, resource: str) -> int:
        return max(
            self.committed_below(queue, resource),
            self._limits.non_lendable.get(queue, NO_AMOUNTS).get(resource, 0),
        )

    def total_committed(self, resource: str) -> int:
        """Of the whole cluster."""
        return self._committed_below.get(None, NO_AMOUNTS).get(resource, 0)

    def unused_non_lendable(self, queue: QueueName, resource: str) -> int:
        """What of it the queue keeps and does not use."""
        return self.committed(queue, resource) - self.committed_below(queue, resource)

    def request_beyond_non_lendable(self, queue: QueueName, requested: Amounts) -> Amounts:
        """What a gang that is in the queue, or below it, still asks of the levels above it: not what the
        queue keeps."""
        if not self._limits.non_lendable_names:
            return requested
        return {
            name: amount - min(amount, self.unused_non_lendable(queue, name))
            for name, amount in requested.items()
        }

    def add(self, queue: QueueName, user: str, amounts: Amounts, sign: int) -> None:
        """Count them in the queue and all above it; with the sign -1, undo exactly that."""
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
            more = sign * amounts.get(name, 0)
            for level in path:
                if not more:
                    break
                before, kept = (
                    self._committed_below.get(level, NO_AMOUNTS).get(name, 0),
                    self._limits.non_lendable.get(level, NO_AMOUNTS).get(name, 0),
                )
                _set_or_remove(self._committed_below, level, {name: more}, 1)
                more = max(before + more, kept) - max(before, kept)
            if more:
                _set_or_remove(self._committed_below, None, {name: more}, 1)


def _set_or_remove(table: dict[K, Amounts], key: K, amounts: Amounts, sign: int) -> None:
    after = _add_scaled(table.get(key, NO_AMOUNTS), amounts, sign)
    if after:
        table[key] = after
    else:
        table.pop(key, None)


def _add_scaled(left: Amounts, right: Amounts, sign: int) -> Amounts:
    found = dict(left)
    for name, amount in right.items():
        after = found.get(name, 0) + sign * amount
        if after:
            found[name] = after
        else:
            found.pop(name, None)
    return found

"""What is used, by queue at every level and by user: sums that are added to and taken from exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Amounts
from hopyard.scheduler.fairness.limits import NOTHING, Limits

K = TypeVar("K")


class Ledger:
    """The amounts in it are never changed, only replaced, so a copy shares them all.

    `taken` of a queue is what nobody outside may use of what those above it have: what is used below it, and
    beside that what it keeps of its guarantee (lend_limit). Bottom up, taken = max(used, kept) of a leaf and
    max(sum of taken right below, kept) of any other queue; so what a queue keeps is counted once, and using
    it takes nothing more (after `SubtreeQuota` and the bubbling up of usage in Kueue's hierarchical cohorts).
    Of resources of which nobody keeps any it is what is used.
    """

    __slots__ = ("_below", "_limits", "_queues", "_users")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queues: dict[QueueName, Amounts] = {}
        self._users: dict[tuple[QueueName, str], Amounts] = {}
        self._below: dict[QueueName | None, Amounts] = {}
        for queue in reversed(list(limits.kept)):  # children before parents
            parent = limits.tree.queues[queue].parent
            _put(self._below, parent, {name: self.taken(queue, name) for name in limits.kept_names}, 1)

    def copy(self) -> Ledger:
        other = Ledger.__new__(Ledger)
        other._limits = self._limits
        other._queues, other._users, other._below = (
            self._queues.copy(),
            self._users.copy(),
            self._below.copy(),
        )
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        return (self._queues, self._users, self._below) == (other._queues, other._users, other._below)

    __hash__ = None  # type: ignore[assignment]

    def used(self, queue: QueueName) -> Amounts:
        return self._queues.get(queue, NOTHING)

    def used_by(self, queue: QueueName, user: str) -> Amounts:
        return self._users.get((queue, user), NOTHING)

    def busy(self) -> list[QueueName]:
        """Queues that gangs use directly, in no order that means anything.
        A queue that has others below it is one only while runs go on that started before it had."""
        below: dict[QueueName, Amounts] = {}
        for queue, amounts in self._queues.items():
            known = self._limits.tree.queues.get(queue)
            if known is not None and known.parent is not None:
                below[known.parent] = _sum(below.get(known.parent, NOTHING), amounts, 1)
        return [queue for queue, amounts in self._queues.items() if below.get(queue, NOTHING) != amounts]

    def users(self, queue: QueueName) -> dict[str, Amounts]:
        return {user: amounts for (of, user), amounts in self._users.items() if of == queue}

    def below(self, queue: QueueName, name: str) -> int:
        """What of it is used below the queue, and what those below it keep beside that."""
        of = self._below if name in self._limits.kept_names else self._queues
        return of.get(queue, NOTHING).get(name, 0)

    def counted(self, queue: QueueName) -> Amounts:
        """What is used below the queue, and what those below it keep beside that."""
        used, names = self.used(queue), self._limits.kept_names
        return {**used, **{name: self.below(queue, name) for name in names}} if names else used

    def taken(self, queue: QueueName, name: str) -> int:
        return max(self.below(queue, name), self._limits.kept.get(queue, NOTHING).get(name, 0))

    def taken_in_all(self, name: str) -> int:
        """Of the whole cluster."""
        return self._below.get(None, NOTHING).get(name, 0)

    def spare(self, queue: QueueName, name: str) -> int:
        """What of it the queue keeps and does not use."""
        return self.taken(queue, name) - self.below(queue, name)

    def beyond_spare(self, queue: QueueName, ask: Amounts) -> Amounts:
        """What a gang that is in the queue, or below it, still asks of the levels above it: not what the
        queue keeps."""
        if not self._limits.kept_names:
            return ask
        return {name: amount - min(amount, self.spare(queue, name)) for name, amount in ask.items()}

    def add(self, queue: QueueName, user: str, amounts: Amounts, sign: int) -> None:
        """Count them in the queue and all above it; with the sign -1, undo exactly that."""
        limits = self._limits
        path = limits.path(queue)
        for level in path:
            _put(self._queues, level, amounts, sign)
        _put(self._users, (queue, user), amounts, sign)
        for level, _ in limits.user_caps.get(queue, ()):
            if level != queue:
                _put(self._users, (level, user), amounts, sign)
        if limits.kept_names:
            self._take(path, amounts, sign)

    def _take(self, path: Sequence[QueueName], amounts: Amounts, sign: int) -> None:
        for name in self._limits.kept_names:
            more = sign * amounts.get(name, 0)
            for level in path:
                if not more:
                    break
                before, kept = (
                    self._below.get(level, NOTHING).get(name, 0),
                    self._limits.kept.get(level, NOTHING).get(name, 0),
                )
                _put(self._below, level, {name: more}, 1)
                more = max(before + more, kept) - max(before, kept)
            if more:
                _put(self._below, None, {name: more}, 1)


def _put(of: dict[K, Amounts], key: K, amounts: Amounts, sign: int) -> None:
    after = _sum(of.get(key, NOTHING), amounts, sign)
    if after:
        of[key] = after
    else:
        of.pop(key, None)


def _sum(one: Amounts, other: Amounts, sign: int) -> Amounts:
    found = dict(one)
    for name, amount in other.items():
        after = found.get(name, 0) + sign * amount
        if after:
            found[name] = after
        else:
            found.pop(name, None)
    return found

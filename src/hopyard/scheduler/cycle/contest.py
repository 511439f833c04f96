"""Which of the queues comes next."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.domain.gang import Gang
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Amounts, Queue
from hopyard.scheduler.fairness.accounts import Accounts


class _Level:
    """One queue. first: who comes first of those below it, with what it asks for, None where nobody waits."""

    __slots__ = ("above", "ask", "below", "first", "key", "name")

    def __init__(self, name: QueueName, above: _Level | None) -> None:
        self.name, self.above = name, above
        self.below: list[_Level] = []
        self.first: Gang | None = None
        self.ask: Amounts = {}
        self.key: tuple[int, float, QueueName] = (0, 0.0, name)


class Contest:
    """From the bottom up: of the queues right below one, whoever has the smallest `Accounts.level_key` stands
    for it (after fair sharing in Kueue's hierarchical cohorts). What is charged in a queue moves it and those
    above it only."""

    def __init__(self, queues: Mapping[QueueName, Queue], accounts: Accounts) -> None:
        """queues: parents before children."""
        self._accounts = accounts
        self._levels: dict[QueueName, _Level] = {}
        self._top: list[_Level] = []
        for name, queue in queues.items():
            above = self._levels[queue.parent] if queue.parent is not None else None
            level = self._levels[name] = _Level(name, above)
            (self._top if above is None else above.below).append(level)

    def enter(self, heads: Mapping[QueueName, Gang | None]) -> None:
        """Who comes first in these queues, in which gangs wait; or that something was charged to them."""
        moved: dict[QueueName, _Level] = {}
        for queue, gang in heads.items():
            level = self._levels[queue]
            if gang is not level.first and gang is not None:
                level.ask = self._accounts.ask(gang)
            level.first = gang
            self._weigh(level)
            if level.above is not None:
                moved[level.above.name] = level.above
        while moved:  # a level is looked at again where one below it moves later: what comes last holds
            found, moved = moved, {}
            for above in found.values():
                best = _first(above.below)
                above.first = None if best is None else best.first
                if best is not None:
                    above.ask = self._accounts.ask_above(best.name, best.ask)
                self._weigh(above)
                if above.above is not None:
                    moved[above.above.name] = above.above

    def first(self) -> Gang | None:
        """Who comes first of all."""
        best = _first(self._top)
        return None if best is None else best.first

    def _weigh(self, level: _Level) -> None:
        if level.first is not None:
            level.key = self._accounts.level_key(level.name, level.ask)


def _first(levels: list[_Level]) -> _Level | None:
    best: _Level | None = None
    for level in levels:
        if level.first is not None and (best is None or level.key < best.key):
            best = level
    return best

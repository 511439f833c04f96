"""Which states somebody still needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable


class Keeping:
    """A state stays as long as one of its keepers (a trial, the study's best, a save under way) keeps it."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, frozenset[str]] = {}
        self._keepers: Counter[str] = Counter()

    def keep(self, keeper: Hashable, states: Iterable[str]) -> list[str]:
        """These, and no others any more. Returns those that nobody keeps now."""
        new = frozenset(state for state in states if state)
        old = self._kept.pop(keeper, frozenset())
        if new:
            self._kept[keeper] = new
        self._keepers.update(new - old)
        self._keepers.subtract(old - new)
        gone = sorted(state for state in old - new if not self._keepers[state])
        for state in gone:
            del self._keepers[state]
        return gone

    def needs(self, state: str) -> bool:
        return self._keepers[state] > 0

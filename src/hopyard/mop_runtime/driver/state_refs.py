"""Reference counts of states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable


class StateRefs:
    """A state is kept as long as it has an owner: a trial, the study's best state, or a save in progress."""

    def __init__(self) -> None:
        self._states_by_holder: dict[Hashable, frozenset[str]] = {}
        self._ref_counts: Counter[str] = Counter()

    def set_refs(self, holder: Hashable, states: Iterable[str]) -> list[str]:
        """Replaces the references of an owner. Returns the states without any owner."""
        new = frozenset(state for state in states if state)
        old = self._states_by_holder.pop(holder, frozenset())
        if new:
            self._states_by_holder[holder] = new
        self._ref_counts.update(new - old)
        self._ref_counts.subtract(old - new)
        unreferenced = sorted(state for state in old - new if not self._ref_counts[state])
        for state in unreferenced:
            del self._ref_counts[state]
        return unreferenced

    def is_referenced(self, state: str) -> bool:
        return self._ref_counts[state] > 0

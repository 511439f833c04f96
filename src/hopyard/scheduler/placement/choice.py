"""In which order nodes are chosen for one role's replicas, and how they are filled."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from hopyard.scheduler.placement.ground import Bools, Ints
from hopyard.scheduler.placement.scores import Values


class Choice:
    """First nodes that the gang uses already, then those to prefer (smaller is better), then by score, then
    by id.

    The rank of a node is that of its row in `values` and `preference`; None where all nodes are alike in
    that.
    """

    def __init__(self, values: Values | None, preference: Ints | None, used: Collection[int]) -> None:
        self._keys: list[Values | Ints] = [key for key in (values, preference) if key is not None]
        self._used = used

    def in_order(self, rows: Ints) -> list[int]:
        keys = [key[rows] for key in self._keys] + self._unused(rows)
        found: list[int] = rows[np.lexsort(keys)].tolist() if keys else rows.tolist()
        return found

    def best(self, rows: Ints, count: int) -> list[int] | None:
        """So many different nodes."""
        return self.in_order(rows)[:count] if len(rows) >= count else None

    def first(self, rows: Ints) -> int:
        """The best of at least one."""
        for unused in self._unused(rows):
            rows = rows[unused == unused.min()]
        for key in reversed(self._keys):
            found = key[rows]
            rows = rows[found == found.min()]
        return int(rows[0])

    def _unused(self, rows: Ints) -> list[Bools]:
        """Which of them the gang does not use yet; nothing where it uses none."""
        return [~np.isin(rows, list(self._used))] if self._used else []


def fill(choice: Callable[[int], Choice], count: int, rows: Ints, room: Ints) -> list[int] | None:
    """Nodes for `count` replicas of which `room[i]` fit on node `rows[i]`: the roomiest are filled, the best
    that takes the rest ends it, so that the fewest nodes are touched. None where they do not suffice.

    choice: the order of nodes for so many replicas on each.
    """
    if int(room.sum()) < count:
        return None
    found: list[int] = []
    while count:
        ending = rows[room >= count]
        if len(ending):
            return found + [choice(count).first(ending)] * count
        most = int(room.max())
        chosen = choice(most).in_order(rows[room == most])[: count // most]
        found += [row for row in chosen for _ in range(most)]
        count -= len(chosen) * most
        left = ~np.isin(rows, chosen)
        rows, room = rows[left], room[left]
    return found

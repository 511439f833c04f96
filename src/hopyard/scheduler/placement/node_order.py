"""The order in which nodes are selected for the replicas of one role, and how they are filled."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from hopyard.scheduler.placement.node_table import Bools, Ints
from hopyard.scheduler.placement.score_rules import Values


class NodeOrder:
    """First nodes that the gang uses already, then those to prefer (smaller is better), then by score, then
    by id.

    The rank of a node is that of its row in `values` and `preference`; None where all nodes are alike in
    that.
    """

    def __init__(self, values: Values | None, preference: Ints | None, used: Collection[int]) -> None:
        self._sort_keys: list[Values | Ints] = [key for key in (values, preference) if key is not None]
        self._used = used

    def sort_rows(self, rows: Ints) -> list[int]:
        keys = [key[rows] for key in self._sort_keys] + self._unused_mask(rows)
        found: list[int] = rows[np.lexsort(keys)].tolist() if keys else rows.tolist()
        return found

    def take_best(self, rows: Ints, count: int) -> list[int] | None:
        """So many different nodes."""
        return self.sort_rows(rows)[:count] if len(rows) >= count else None

    def best_row(self, rows: Ints) -> int:
        """The best of at least one."""
        for unused in self._unused_mask(rows):
            rows = rows[unused == unused.min()]
        for key in reversed(self._sort_keys):
            found = key[rows]
            rows = rows[found == found.min()]
        return int(rows[0])

    def _unused_mask(self, rows: Ints) -> list[Bools]:
        """Which of them the gang does not use yet; nothing where it uses none."""
        return [~np.isin(rows, list(self._used))] if self._used else []


def pack_replicas(
    order_for: Callable[[int], NodeOrder], count: int, rows: Ints, replicas_per_node: Ints
) -> list[int] | None:
    """Nodes for `count` replicas of which `room[i]` fit on node `rows[i]`: the roomiest are filled, the best
    that takes the rest ends it, so that the fewest nodes are touched. None where they do not suffice.

    order_for: the order of nodes for so many replicas on each.
    """
    if int(replicas_per_node.sum()) < count:
        return None
    found: list[int] = []
    while count:
        ending = rows[replicas_per_node >= count]
        if len(ending):
            return found + [order_for(count).best_row(ending)] * count
        most = int(replicas_per_node.max())
        chosen = order_for(most).sort_rows(rows[replicas_per_node == most])[: count // most]
        found += [row for row in chosen for _ in range(most)]
        count -= len(chosen) * most
        left = ~np.isin(rows, chosen)
        rows, replicas_per_node = rows[left], replicas_per_node[left]
    return found

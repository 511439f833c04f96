"""The order in which nodes are selected for the replicas of one role, and how they are filled."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from hopyard.scheduler.placement.node_table import Bools, Ints
from hopyard.scheduler.placement.score_rules import Values


class NodeOrder:
    """Orders nodes: first nodes that the gang already uses, then by preference (smaller is better), then by
    score, then by id.

    `values` and `preference` are indexed by row; None if all nodes are equal in this respect.
    """

    def __init__(self, values: Values | None, preference: Ints | None, used: Collection[int]) -> None:
        self._sort_keys: list[Values | Ints] = [key for key in (values, preference) if key is not None]
        self._used = used

    def sort_rows(self, rows: Ints) -> list[int]:
        keys = [key[rows] for key in self._sort_keys] + self._unused_mask(rows)
        ordered: list[int] = rows[np.lexsort(keys)].tolist() if keys else rows.tolist()
        return ordered

    def take_best(self, rows: Ints, count: int) -> list[int] | None:
        """Returns the best `count` different nodes, or None if there are fewer."""
        return self.sort_rows(rows)[:count] if len(rows) >= count else None

    def best_row(self, rows: Ints) -> int:
        """Returns the best node of at least one."""
        for unused in self._unused_mask(rows):
            rows = rows[unused == unused.min()]
        for key in reversed(self._sort_keys):
            key_values = key[rows]
            rows = rows[key_values == key_values.min()]
        return int(rows[0])

    def _unused_mask(self, rows: Ints) -> list[Bools]:
        """Returns which nodes the gang does not use yet; an empty list if it uses no node."""
        return [~np.isin(rows, list(self._used))] if self._used else []


def pack_replicas(
    order_for: Callable[[int], NodeOrder], count: int, rows: Ints, replicas_per_node: Ints
) -> list[int] | None:
    """Returns nodes for `count` replicas, or None if they do not fit. `replicas_per_node[i]` replicas fit on
    node `rows[i]`. Fills the nodes with the most capacity first, and puts the remaining replicas on the best
    node where they fit, so that the fewest nodes are used.

    order_for: returns the order of nodes for a number of replicas on each.
    """
    if int(replicas_per_node.sum()) < count:
        return None
    nodes: list[int] = []
    while count:
        last_node_candidates = rows[replicas_per_node >= count]
        if len(last_node_candidates):
            return nodes + [order_for(count).best_row(last_node_candidates)] * count
        capacity = int(replicas_per_node.max())
        chosen = order_for(capacity).sort_rows(rows[replicas_per_node == capacity])[: count // capacity]
        nodes += [row for row in chosen for _ in range(capacity)]
        count -= len(chosen) * capacity
        remaining = ~np.isin(rows, chosen)
        rows, replicas_per_node = rows[remaining], replicas_per_node[remaining]
    return nodes

"""Groups nodes in equal states, which are scored once: large clusters have few kinds of nodes and of runs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import Ints

HASH_FACTORS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9], np.uint64).view(np.int64)
MAX_CHANGED_FRACTION = 4  # one node in this many may change before the groups are rebuilt


class NodeEquivalence:
    """Groups of nodes in equal states. A node that changed since the groups were built is a group of its own.

    node_kind[i]: nodes of different kinds are never in one group.
    """

    def __init__(self, node_kind: Ints) -> None:
        self._node_kind = node_kind
        self._group_of: Ints | None = None
        self._group_count = 0
        self._changed: set[int] = set()

    def copy(self) -> NodeEquivalence:
        result = NodeEquivalence(self._node_kind)
        result._group_of, result._group_count, result._changed = (
            self._group_of,
            self._group_count,
            self._changed.copy(),
        )
        return result

    def mark_changed(self, rows: Iterable[int]) -> None:
        """Records that these nodes changed."""
        self._changed.update(rows)

    def representatives(self, free: FreeResources) -> tuple[Ints, Ints, Ints]:
        """Returns one node per group, the group of each node as an index into the first array, and the number
        of open nodes in each group."""
        count = len(self._node_kind)
        if self._group_of is None or len(self._changed) * MAX_CHANGED_FRACTION > count:
            _, self._group_of = np.unique(_state_hashes(self._node_kind, free), return_inverse=True)
            self._group_of = self._group_of.reshape(-1)
            self._group_count = int(self._group_of.max(initial=-1)) + 1
            self._changed.clear()
        changed = np.fromiter(self._changed, np.int64, len(self._changed))
        group_of = self._group_of.copy()
        group_of[changed] = np.arange(self._group_count, self._group_count + len(changed))
        representative = np.zeros(self._group_count + len(changed), np.int64)
        representative[group_of] = np.arange(count)
        return (
            representative,
            group_of,
            np.bincount(group_of[free.node_table.open], minlength=len(representative)),
        )


def _state_hashes(kind: Ints, free: FreeResources) -> Ints:
    """Returns a hash of the state of each node. Two different states collide about once in 2^64 times."""
    hashes = _mix_hashes(kind, free.cpu)
    for amounts in (free.memory, *free.gpu.T, *(free.extras[name] for name in sorted(free.extras))):
        hashes = _mix_hashes(hashes, amounts)
    return hashes


def _mix_hashes(a: Ints, b: Ints) -> Ints:
    """Returns a hash whose bits depend on all bits of both; wraps around (the finish of splitmix64)."""
    mixed: Ints = a * HASH_FACTORS[0] + b
    mixed ^= mixed >> 31
    mixed *= HASH_FACTORS[1]
    mixed ^= mixed >> 29
    return mixed

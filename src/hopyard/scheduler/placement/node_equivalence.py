"""Groups nodes in equal states, which are scored once: large clusters have few kinds of nodes and runs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import Ints

HASH_FACTORS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9], np.uint64).view(np.int64)
MAX_CHANGED_FRACTION = 4  # one part in so many may have changed since nodes were sorted into groups


class NodeEquivalence:
    """Groups of nodes that are in equal states, and those that changed since: each of these is looked at for
    itself.

    kind[i]: nodes of different kinds are never alike.
    """

    def __init__(self, node_kind: Ints) -> None:
        self._node_kind = node_kind
        self._group_of: Ints | None = None
        self._group_count = 0
        self._changed: set[int] = set()

    def copy(self) -> NodeEquivalence:
        found = NodeEquivalence(self._node_kind)
        found._group_of, found._group_count, found._changed = (
            self._group_of,
            self._group_count,
            self._changed.copy(),
        )
        return found

    def mark_changed(self, rows: Iterable[int]) -> None:
        """Records that these nodes changed."""
        self._changed.update(rows)

    def representatives(self, free: FreeResources) -> tuple[Ints, Ints, Ints]:
        """Nodes to look at; which of them each node is like, as an index into the first; and how many open
        ones are like each."""
        count = len(self._node_kind)
        if self._group_of is None or len(self._changed) * MAX_CHANGED_FRACTION > count:
            _, self._group_of = np.unique(_state_hashes(self._node_kind, free), return_inverse=True)
            self._group_of = self._group_of.reshape(-1)
            self._group_count = int(self._group_of.max(initial=-1)) + 1
            self._changed.clear()
        moved = np.fromiter(self._changed, np.int64, len(self._changed))
        like = self._group_of.copy()
        like[moved] = np.arange(self._group_count, self._group_count + len(moved))
        example = np.zeros(self._group_count + len(moved), np.int64)
        example[like] = np.arange(count)
        return example, like, np.bincount(like[free.node_table.open], minlength=len(example))


def _state_hashes(kind: Ints, free: FreeResources) -> Ints:
    """A number for the state of each node. States that differ get the same one about once in 2^64 times."""
    found = _mix_hashes(kind, free.cpu)
    for more in (free.memory, *free.gpu.T, *(free.extras[name] for name in sorted(free.extras))):
        found = _mix_hashes(found, more)
    return found


def _mix_hashes(a: Ints, b: Ints) -> Ints:
    """A number of both, whose bits depend on all of theirs; wraps around (the finish of splitmix64)."""
    found: Ints = a * HASH_FACTORS[0] + b
    found ^= found >> 31
    found *= HASH_FACTORS[1]
    found ^= found >> 29
    return found

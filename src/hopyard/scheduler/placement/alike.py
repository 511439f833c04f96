"""Nodes in equal states, which need to be looked at once: in large clusters there are few kinds of nodes and
of runs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import Ints

FACTORS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9], np.uint64).view(np.int64)
MOST_MOVED = 4  # one part in so many may have changed since nodes were sorted into groups


class Alike:
    """Groups of nodes that are in equal states, and those that changed since: each of these is looked at for
    itself.

    kind[i]: nodes of different kinds are never alike.
    """

    def __init__(self, kind: Ints) -> None:
        self._kind = kind
        self._group: Ints | None = None
        self._groups = 0
        self._moved: set[int] = set()

    def copy(self) -> Alike:
        found = Alike(self._kind)
        found._group, found._groups, found._moved = self._group, self._groups, self._moved.copy()
        return found

    def moved(self, rows: Iterable[int]) -> None:
        """These nodes changed."""
        self._moved.update(rows)

    def examples(self, free: Free) -> tuple[Ints, Ints, Ints]:
        """Nodes to look at; which of them each node is like, as an index into the first; and how many open
        ones are like each."""
        count = len(self._kind)
        if self._group is None or len(self._moved) * MOST_MOVED > count:
            _, self._group = np.unique(_numbers(self._kind, free), return_inverse=True)
            self._group = self._group.reshape(-1)
            self._groups = int(self._group.max(initial=-1)) + 1
            self._moved.clear()
        moved = np.fromiter(self._moved, np.int64, len(self._moved))
        like = self._group.copy()
        like[moved] = np.arange(self._groups, self._groups + len(moved))
        example = np.zeros(self._groups + len(moved), np.int64)
        example[like] = np.arange(count)
        return example, like, np.bincount(like[free.ground.open], minlength=len(example))


def _numbers(kind: Ints, free: Free) -> Ints:
    """A number for the state of each node. States that differ get the same one about once in 2^64 times."""
    found = _mixed(kind, free.cpu)
    for more in (free.memory, *free.gpu.T, *(free.extras[name] for name in sorted(free.extras))):
        found = _mixed(found, more)
    return found


def _mixed(a: Ints, b: Ints) -> Ints:
    """A number of both, whose bits depend on all of theirs; wraps around (the finish of splitmix64)."""
    found: Ints = a * FACTORS[0] + b
    found ^= found >> 31
    found *= FACTORS[1]
    found ^= found >> 29
    return found

"""What comes back to each node as its runs end, in order of time, kept up where only few nodes change."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopyard.scheduler.placement.ground import Ints

Floats = NDArray[np.float64]
SPARE = 2  # so many more replicas may come to each node before all is laid out anew


class Releases:
    """Entries in order of node, then time; each node has some to spare, at infinity.

    node, at: of each entry, the index of its node and the point in time. back[i]: what has come back to the
    node by then, in thousandths of cores (0), bytes (1), and thousandths of GPUs (2). first: of each node,
    its first entry.
    """

    def __init__(self, count: int, node: Ints, at: Floats, amounts: Ints) -> None:
        """count: of nodes. node, at, amounts[:, i]: of each replica, in any order."""
        self._room = np.bincount(node, minlength=count) + SPARE
        self.first: Ints = np.cumsum(self._room) - self._room
        self.node: Ints = np.repeat(np.arange(count), self._room)
        self.at: Floats = np.full(len(self.node), np.inf)
        self.back: Ints = np.zeros((3, len(self.node)), np.int64)
        self._write(node, at, amounts)

    def put(self, nodes: Ints, node: Ints, at: Floats, amounts: Ints) -> bool:
        """From now on this is all that comes back to these nodes.
        False where there is too little room: then nothing changes."""
        if (np.bincount(node, minlength=len(self._room)) > self._room).any():
            return False
        _, within, sizes = _stretches(np.repeat(nodes, self._room[nodes]))
        self.at[np.repeat(self.first[nodes], sizes) + within] = np.inf
        self._write(node, at, amounts)
        return True

    def _write(self, node: Ints, at: Floats, amounts: Ints) -> None:
        by_time = np.argsort(at)
        # few bits are sorted much faster
        small = np.uint16 if len(self._room) <= np.iinfo(np.uint16).max else np.int64
        order = by_time[np.argsort(node[by_time].astype(small), kind="stable")]
        node, amounts = node[order], amounts[:, order]
        starts, within, sizes = _stretches(node)
        sums = np.cumsum(amounts, axis=1)
        entry = self.first[node] + within
        self.at[entry] = at[order]
        self.back[:, entry] = sums - np.repeat(sums[:, starts] - amounts[:, starts], sizes, axis=1)


def _stretches(node: Ints) -> tuple[Ints, Ints, Ints]:
    """Of sorted numbers: where each of them stands first, how far each is behind that, and how often each is
    there."""
    starts = np.flatnonzero(np.diff(node, prepend=-1))
    sizes = np.diff(starts, append=len(node))
    return starts, np.arange(len(node)) - np.repeat(starts, sizes), sizes

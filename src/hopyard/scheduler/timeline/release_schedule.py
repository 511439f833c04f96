"""Resources that each node gets back as its runs end, sorted by time. Changes of a few nodes are cheap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopyard.scheduler.placement.node_table import Ints

Floats = NDArray[np.float64]
MIN_SPARE_ENTRIES = 2  # so many more replicas may come to each node before all is laid out anew


class ReleaseSchedule:
    """Entries in order of node, then time; each node has some to spare, at infinity.

    node, times: of each entry, the index of its node and the point in time. back[i]: what has come back to
    the node by then, in thousandths of cores (0), bytes (1), and thousandths of GPUs (2). first_entry: of
    each node, its first entry.
    """

    def __init__(self, count: int, node: Ints, times: Floats, amounts: Ints) -> None:
        """count: of nodes. node, at, amounts[:, i]: of each replica, in any order."""
        self._entry_counts = np.bincount(node, minlength=count) + MIN_SPARE_ENTRIES
        self.first_entry: Ints = np.cumsum(self._entry_counts) - self._entry_counts
        self.node: Ints = np.repeat(np.arange(count), self._entry_counts)
        self.times: Floats = np.full(len(self.node), np.inf)
        self.released: Ints = np.zeros((3, len(self.node)), np.int64)
        self._write(node, times, amounts)

    def replace_nodes(self, nodes: Ints, node: Ints, times: Floats, amounts: Ints) -> bool:
        """Replaces all releases of these nodes. Returns False, and changes nothing, if there are too few
        spare entries."""
        if (np.bincount(node, minlength=len(self._entry_counts)) > self._entry_counts).any():
            return False
        _, within, sizes = _group_bounds(np.repeat(nodes, self._entry_counts[nodes]))
        self.times[np.repeat(self.first_entry[nodes], sizes) + within] = np.inf
        self._write(node, times, amounts)
        return True

    def _write(self, node: Ints, times: Floats, amounts: Ints) -> None:
        by_time = np.argsort(times)
        # few bits are sorted much faster
        small = np.uint16 if len(self._entry_counts) <= np.iinfo(np.uint16).max else np.int64
        order = by_time[np.argsort(node[by_time].astype(small), kind="stable")]
        node, amounts = node[order], amounts[:, order]
        starts, within, sizes = _group_bounds(node)
        sums = np.cumsum(amounts, axis=1)
        entry = self.first_entry[node] + within
        self.times[entry] = times[order]
        self.released[:, entry] = sums - np.repeat(sums[:, starts] - amounts[:, starts], sizes, axis=1)


def _group_bounds(node: Ints) -> tuple[Ints, Ints, Ints]:
    """Of sorted numbers: where each of them stands first, how far each is behind that, and how often each is
    there."""
    starts = np.flatnonzero(np.diff(node, prepend=-1))
    sizes = np.diff(starts, append=len(node))
    return starts, np.arange(len(node)) - np.repeat(starts, sizes), sizes

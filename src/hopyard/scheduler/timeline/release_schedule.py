"""Resources that are released on each node as its runs end, sorted by time. Changes of a few nodes are
cheap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopyard.scheduler.placement.node_table import Ints

Floats = NDArray[np.float64]
MIN_SPARE_ENTRIES = 2  # replicas that can be added to each node before the schedule is rebuilt


class ReleaseSchedule:
    """Entries in order of node, then time. Each node has spare entries at infinity.

    node, times: the node index and the point in time of each entry. released[i]: what has been released on
    the node by then, in thousandths of cores (0), bytes (1), and thousandths of GPUs (2). first_entry: the
    first entry of each node.
    """

    def __init__(self, count: int, node: Ints, times: Floats, amounts: Ints) -> None:
        """count: the number of nodes. node, times, amounts[:, i]: one value per replica, in any order."""
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
        _, offsets, sizes = _group_bounds(np.repeat(nodes, self._entry_counts[nodes]))
        self.times[np.repeat(self.first_entry[nodes], sizes) + offsets] = np.inf
        self._write(node, times, amounts)
        return True

    def _write(self, node: Ints, times: Floats, amounts: Ints) -> None:
        by_time = np.argsort(times)
        # small integers are sorted much faster
        sort_type = np.uint16 if len(self._entry_counts) <= np.iinfo(np.uint16).max else np.int64
        order = by_time[np.argsort(node[by_time].astype(sort_type), kind="stable")]
        node, amounts = node[order], amounts[:, order]
        starts, offsets, sizes = _group_bounds(node)
        sums = np.cumsum(amounts, axis=1)
        entries = self.first_entry[node] + offsets
        self.times[entries] = times[order]
        self.released[:, entries] = sums - np.repeat(sums[:, starts] - amounts[:, starts], sizes, axis=1)


def _group_bounds(node: Ints) -> tuple[Ints, Ints, Ints]:
    """For sorted numbers, returns the first position of each number, the offset of each item from it, and the
    count of each number."""
    starts = np.flatnonzero(np.diff(node, prepend=-1))
    sizes = np.diff(starts, append=len(node))
    return starts, np.arange(len(node)) - np.repeat(starts, sizes), sizes

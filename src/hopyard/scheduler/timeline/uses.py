"""Who holds how much of which node, in arrays that are kept up as gangs come and go."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hopyard.domain.gang import Placement
from hopyard.domain.ids import NodeId
from hopyard.scheduler.placement.ground import Ints

SLOT, NODE, CPU, MEMORY, GPU = range(5)
NOBODY = -1  # the node of what is not held any more
_ROOM = 64


class Uses:
    """One column of numbers for each replica: the slot of its gang, its node as an index into `nodes`, and
    what it holds in thousandths of cores, bytes, and thousandths of GPUs. nodes: another dict once their
    numbers are others."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, int] = {}
        self._all: Ints = np.zeros((5, _ROOM), np.int64)
        self._count = 0
        self._gone = 0
        self._of: dict[int, tuple[int, int]] = {}  # where those of each slot stand

    def add_all(self, placements: Iterable[tuple[int, Placement]]) -> None:
        """By the slots of their gangs, of which nothing is there."""
        first = self._count
        new: list[tuple[int, ...]] = []
        for slot, placement in placements:
            begin = first + len(new)
            for (_, role), assignment in zip(placement.gang.requests(), placement.assignments, strict=True):
                asked, node = role.resources, self.nodes.setdefault(assignment.node, len(self.nodes))
                new.append(
                    (
                        slot,
                        node,
                        asked.cpu_milli,
                        asked.memory_bytes,
                        len(assignment.gpus) * assignment.gpu_milli,
                    )
                )
            self._of[slot] = begin, first + len(new)
        self._count = first + len(new)
        while self._count > self._all.shape[1]:
            self._all = np.concatenate([self._all, np.zeros_like(self._all)], axis=1)
        if new:
            self._all[:, first : self._count] = np.array(new, np.int64).T

    def drop(self, slot: int) -> None:
        first, end = self._of.pop(slot)
        self._all[NODE, first:end] = NOBODY
        self._gone += end - first
        if self._gone > max(_ROOM, self._count // 2):
            self._close_up()

    @property
    def all(self) -> Ints:
        """Those of gangs that are gone, on the node NOBODY, among them."""
        return self._all[:, : self._count]

    def _close_up(self) -> None:
        """Leave nothing of gangs that are gone, nor of nodes on which nothing is left."""
        live, at = self.all[:, self.all[NODE] != NOBODY], 0
        for slot, (first, end) in self._of.items():  # in the order in which they came, as they stand
            self._of[slot], at = (at, at + end - first), at + end - first
        held, names = np.unique(live[NODE]), list(self.nodes)
        live[NODE] = np.searchsorted(held, live[NODE])
        self.nodes = {names[index]: place for place, index in enumerate(held.tolist())}
        self._all, self._count, self._gone = (
            np.concatenate([live, np.zeros((5, _ROOM), np.int64)], axis=1),
            live.shape[1],
            0,
        )

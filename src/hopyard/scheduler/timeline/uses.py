"""Who holds how much of which node, in arrays that are kept up as gangs come and go."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hopyard.domain.gang import Placement
from hopyard.domain.ids import NodeId

Ints = NDArray[np.int64]
SLOT, NODE, CPU, MEMORY, GPU = range(5)  # columns
_NOBODY = -1
_ROOM = 64


class Uses:
    """One row for each replica: the slot of its gang, its node as an index into `nodes`, and what it holds in thousandths of
    cores, bytes, and thousandths of GPUs."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, int] = {}
        self._rows: Ints = np.zeros((_ROOM, 5), np.int64)
        self._count = 0
        self._gone = 0
        self._of: dict[int, tuple[int, int]] = {}  # the rows of each slot

    def add_all(self, placements: Iterable[tuple[int, Placement]]) -> None:
        """By the slots of their gangs, of which nothing is there."""
        first = self._count
        rows: list[tuple[int, ...]] = []
        for slot, placement in placements:
            begin = first + len(rows)
            for (_, role), assignment in zip(placement.gang.requests(), placement.assignments, strict=True):
                asked, node = role.resources, self.nodes.setdefault(assignment.node, len(self.nodes))
                rows.append((slot, node, asked.cpu_milli, asked.memory_bytes, len(assignment.gpus) * assignment.gpu_milli))
            self._of[slot] = begin, first + len(rows)
        self._count = first + len(rows)
        while self._count > len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        if rows:
            self._rows[first : self._count] = rows

    def drop(self, slot: int) -> None:
        first, end = self._of.pop(slot)
        self._rows[first:end, SLOT] = _NOBODY
        self._gone += end - first
        if self._gone > max(_ROOM, self._count // 2):
            self._close_up()

    def live(self) -> Ints:
        rows = self._rows[: self._count]
        found: Ints = rows[rows[:, SLOT] != _NOBODY]
        return found

    def _close_up(self) -> None:
        """Leave no rows of gangs that are gone."""
        rows, at = self.live(), 0
        for slot, (first, end) in self._of.items():  # in the order in which they came, as their rows stand
            self._of[slot], at = (at, at + end - first), at + end - first
        self._rows, self._count, self._gone = np.concatenate([rows, np.zeros((_ROOM, 5), np.int64)]), len(rows), 0

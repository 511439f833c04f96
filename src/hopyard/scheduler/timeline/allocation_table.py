"""Allocations of gangs on nodes, in arrays that are updated as gangs come and go."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hopyard.domain.gang import Placement
from hopyard.domain.ids import NodeId
from hopyard.scheduler.placement.node_table import Ints

SLOT, NODE, CPU, MEMORY, GPU = range(5)
NO_NODE = -1  # the node of removed allocations
_INITIAL_SIZE = 64


class AllocationTable:
    """One column of numbers per replica: the slot of its gang, the index of its node in `nodes`, and its
    thousandths of cores, bytes, and thousandths of GPUs. nodes: replaced by a new dict when indices
    change."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, int] = {}
        self._columns: Ints = np.zeros((5, _INITIAL_SIZE), np.int64)
        self._count = 0
        self._freed_count = 0
        self._range_by_slot: dict[int, tuple[int, int]] = {}  # column range of each slot

    def add_all(self, placements: Iterable[tuple[int, Placement]]) -> None:
        """Adds placements by the slots of their gangs; these slots must be empty."""
        first = self._count
        rows: list[tuple[int, ...]] = []
        for slot, placement in placements:
            start = first + len(rows)
            for (_, role), assignment in zip(
                placement.gang.replica_roles(), placement.assignments, strict=True
            ):
                request, node = role.resources, self.nodes.setdefault(assignment.node, len(self.nodes))
                rows.append(
                    (
                        slot,
                        node,
                        request.cpu_milli,
                        request.memory_bytes,
                        len(assignment.gpus) * assignment.gpu_milli,
                    )
                )
            self._range_by_slot[slot] = start, first + len(rows)
        self._count = first + len(rows)
        while self._count > self._columns.shape[1]:
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
        if rows:
            self._columns[:, first : self._count] = np.array(rows, np.int64).T

    def drop(self, slot: int) -> None:
        first, end = self._range_by_slot.pop(slot)
        self._columns[NODE, first:end] = NO_NODE
        self._freed_count += end - first
        if self._freed_count > max(_INITIAL_SIZE, self._count // 2):
            self._compact()

    @property
    def columns(self) -> Ints:
        """Returns all columns. Columns of removed gangs are included, on the node NO_NODE."""
        return self._columns[:, : self._count]

    def _compact(self) -> None:
        """Removes the columns of removed gangs, and nodes without allocations."""
        live, start = self.columns[:, self.columns[NODE] != NO_NODE], 0
        # in insertion order, which is the column order
        for slot, (first, end) in self._range_by_slot.items():
            self._range_by_slot[slot], start = (start, start + end - first), start + end - first
        used_nodes, names = np.unique(live[NODE]), list(self.nodes)
        live[NODE] = np.searchsorted(used_nodes, live[NODE])
        self.nodes = {names[index]: position for position, index in enumerate(used_nodes.tolist())}
        self._columns, self._count, self._freed_count = (
            np.concatenate([live, np.zeros((5, _INITIAL_SIZE), np.int64)], axis=1),
            live.shape[1],
            0,
        )

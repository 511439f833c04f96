"""Free resources per node as arrays: the working copy of a placement search."""

from __future__ import annotations

import numpy as np

from hopyard.domain.resources import Resources
from hopyard.scheduler.placement.node_table import Ints, NodeTable


class FreeResources:
    """cpu[i], memory[i], extras[name][i], gpu[i, j]: what is left on node i of `node_table`; less than
    nothing where a node shrank under what runs on it."""

    __slots__ = ("cpu", "extras", "gpu", "memory", "node_table")

    def __init__(
        self, node_table: NodeTable, cpu: Ints, memory: Ints, gpu: Ints, extras: dict[str, Ints]
    ) -> None:
        self.node_table, self.cpu, self.memory, self.gpu, self.extras = node_table, cpu, memory, gpu, extras

    @classmethod
    def of_empty_nodes(cls, node_table: NodeTable) -> FreeResources:
        """Returns the free resources of empty nodes."""
        extras = {name: left.copy() for name, left in node_table.extras.items()}
        return cls(node_table, node_table.cpu.copy(), node_table.memory.copy(), node_table.gpu.copy(), extras)

    def copy(self) -> FreeResources:
        extras = {name: left.copy() for name, left in self.extras.items()}
        return FreeResources(self.node_table, self.cpu.copy(), self.memory.copy(), self.gpu.copy(), extras)

    def align_to(self, node_table: NodeTable) -> FreeResources:
        """The same, in the rows of another ground; of nodes and cards that are not there, or closed here,
        nothing is free."""
        found = FreeResources.of_empty_nodes(node_table)
        for left in (found.cpu, found.memory, found.gpu, *found.extras.values()):
            left[:] = 0
        for row, node in enumerate(node_table.nodes):
            there = self.node_table.row_of.get(node.id)
            if there is None or (node.schedulable and not self.node_table.open[there]):
                continue
            found.cpu[row], found.memory[row] = self.cpu[there], self.memory[there]
            for column, gpu in enumerate(node_table.gpus[row]):
                if (other := self.node_table.gpu_column_of[there].get(gpu.index)) is not None:
                    found.gpu[row, column] = self.gpu[there, other]
            for name in found.extras:
                if name in self.extras:
                    found.extras[name][row] = self.extras[name][there]
        return found

    def extra(self, name: str, rows: Ints | slice) -> Ints:
        """What these nodes have left of one of the other countable things; nothing of one that no node
        has."""
        left = self.extras.get(name)
        return np.zeros(len(self.cpu), np.int64)[rows] if left is None else left[rows]

    def allocate(
        self, row: int, request: Resources, columns: tuple[int, ...], milli: int, sign: int = 1
    ) -> None:
        """Allocates one replica (sign 1), or releases it (-1)."""
        self.cpu[row] -= sign * request.cpu_milli
        self.memory[row] -= sign * request.memory_bytes
        for column in columns:
            self.gpu[row, column] -= sign * milli
        for name, amount in request.extras:
            if name in self.extras:
                self.extras[name][row] -= sign * amount

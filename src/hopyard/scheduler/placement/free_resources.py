"""Free resources per node as arrays: the working copy of a placement search."""

from __future__ import annotations

import numpy as np

from hopyard.domain.resources import Resources
from hopyard.scheduler.placement.node_table import Ints, NodeTable


class FreeResources:
    """cpu[i], memory[i], extras[name][i], gpu[i, j]: what is free on node i of `node_table`. Negative if a
    node shrank below what runs on it."""

    __slots__ = ("cpu", "extras", "gpu", "memory", "node_table")

    def __init__(
        self, node_table: NodeTable, cpu: Ints, memory: Ints, gpu: Ints, extras: dict[str, Ints]
    ) -> None:
        self.node_table, self.cpu, self.memory, self.gpu, self.extras = node_table, cpu, memory, gpu, extras

    @classmethod
    def of_empty_nodes(cls, node_table: NodeTable) -> FreeResources:
        """Returns the free resources of empty nodes."""
        extras = {name: amounts.copy() for name, amounts in node_table.extras.items()}
        return cls(node_table, node_table.cpu.copy(), node_table.memory.copy(), node_table.gpu.copy(), extras)

    def copy(self) -> FreeResources:
        extras = {name: amounts.copy() for name, amounts in self.extras.items()}
        return FreeResources(self.node_table, self.cpu.copy(), self.memory.copy(), self.gpu.copy(), extras)

    def align_to(self, node_table: NodeTable) -> FreeResources:
        """Returns the same free resources in the rows of another node table. Nodes and GPUs that are missing
        or closed in this table have nothing free."""
        aligned = FreeResources.of_empty_nodes(node_table)
        for amounts in (aligned.cpu, aligned.memory, aligned.gpu, *aligned.extras.values()):
            amounts[:] = 0
        for row, node in enumerate(node_table.nodes):
            source_row = self.node_table.row_of.get(node.id)
            if source_row is None or (node.schedulable and not self.node_table.open[source_row]):
                continue
            aligned.cpu[row], aligned.memory[row] = self.cpu[source_row], self.memory[source_row]
            for column, gpu in enumerate(node_table.gpus[row]):
                if (source_column := self.node_table.gpu_column_of[source_row].get(gpu.index)) is not None:
                    aligned.gpu[row, column] = self.gpu[source_row, source_column]
            for name in aligned.extras:
                if name in self.extras:
                    aligned.extras[name][row] = self.extras[name][source_row]
        return aligned

    def extra(self, name: str, rows: Ints | slice) -> Ints:
        """Returns what these nodes have left of an extra resource; zeros if no node has it."""
        amounts = self.extras.get(name)
        return np.zeros(len(self.cpu), np.int64)[rows] if amounts is None else amounts[rows]

    def allocate(
        self, row: int, request: Resources, columns: tuple[int, ...], milli: int, sign: int = 1
    ) -> None:
        """Allocates one replica (sign 1), or releases it (sign -1)."""
        self.cpu[row] -= sign * request.cpu_milli
        self.memory[row] -= sign * request.memory_bytes
        for column in columns:
            self.gpu[row, column] -= sign * milli
        for name, amount in request.extras:
            if name in self.extras:
                self.extras[name][row] -= sign * amount

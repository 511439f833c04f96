"""Scores nodes by fragmentation: how much capacity that typical gangs could still use is destroyed by a
replica."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.placement.copy_on_write_rows import CopyOnWriteRows
from hopyard.scheduler.placement.feasibility import NodeFeasibility
from hopyard.scheduler.placement.fragmentation_value import Floats, FragmentationValue
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_equivalence import NodeEquivalence
from hopyard.scheduler.placement.node_table import Bools, Ints
from hopyard.scheduler.placement.score_rules import INFEASIBLE, NO_COLUMN, Columns, Values

MAX_SCALAR_NODES = 4  # up to this many nodes are updated one by one; arrays cost more than they save
GPU_NODE_PENALTY = 0.5  # a replica without GPUs prefers a node without GPUs at equal loss


class FragmentationScorer:
    """Keeps the fragmentation value of every node of one FreeResources, updated as nodes change. Scores are
    whole numbers below 2^53, or whole numbers plus a half.

    weights: the weights of the shapes; those of empty nodes until the first update.
    """

    def __init__(
        self, fragmentation_value: FragmentationValue, free: FreeResources, weights: Floats | None = None
    ) -> None:
        self._fragmentation_value, self.weights = (
            fragmentation_value,
            fragmentation_value.empty_weights if weights is None else weights,
        )
        self._node_equivalence = NodeEquivalence(fragmentation_value.node_kind)
        rows, group_of, _ = self._node_equivalence.representatives(free)
        usable_on_gpus = fragmentation_value.usable_on_gpus(free.gpu[rows])
        self._usable_by_gpu = CopyOnWriteRows(usable_on_gpus[group_of])
        self._node_values = self._node_totals(
            fragmentation_value.bounded_usable(
                usable_on_gpus, fragmentation_value.gpu_limits(free.cpu[rows], free.memory[rows])
            ),
            rows,
        )[group_of]

    def copy(self) -> FragmentationScorer:
        scorer = object.__new__(FragmentationScorer)
        scorer._fragmentation_value, scorer.weights, scorer._node_equivalence = (
            self._fragmentation_value,
            self.weights,
            self._node_equivalence.copy(),
        )
        scorer._usable_by_gpu, scorer._node_values = self._usable_by_gpu.copy(), self._node_values.copy()
        return scorer

    def update_weights(self, free: FreeResources) -> bool:
        """Weights the shapes by the capacity that exists for each of them now. Returns whether the scores
        changed."""
        value = self._fragmentation_value
        rows, group_of, node_counts = self._node_equivalence.representatives(free)
        usable = value.bounded_usable(
            self._usable_by_gpu.read(rows), value.gpu_limits(free.cpu[rows], free.memory[rows])
        )
        weights = value.weights(usable, rows, node_counts)
        if np.array_equal(weights, self.weights):
            return False
        self.weights = weights
        self._node_values = self._node_totals(usable, rows)[group_of]
        return True

    def refresh(self, free: FreeResources, rows: Collection[int]) -> None:
        """Updates the values of these changed nodes."""
        self._node_equivalence.mark_changed(rows)
        if len(rows) <= MAX_SCALAR_NODES:
            for row in rows:
                self._refresh_row(free, row)
        else:
            self._refresh_rows(free, np.fromiter(rows, np.int64, len(rows)))

    def _refresh_rows(self, free: FreeResources, rows: Ints) -> None:
        value = self._fragmentation_value
        usable_on_gpus = value.usable_on_gpus(free.gpu.take(rows, 0))
        self._usable_by_gpu.write(rows, usable_on_gpus)
        self._node_values[rows] = self._node_totals(
            value.bounded_usable(usable_on_gpus, value.gpu_limits(free.cpu[rows], free.memory[rows])), rows
        )

    def _refresh_row(self, free: FreeResources, row: int) -> None:
        """Updates one node, with far fewer steps than `_refresh_rows`."""
        value = self._fragmentation_value
        usable_on_gpus = value.usable_on_node(free.gpu[row])
        self._usable_by_gpu.write_one(row, usable_on_gpus)
        usable = value.bounded_usable(
            usable_on_gpus, value.gpu_limits_of_node(free.cpu.item(row), free.memory.item(row))
        )
        self._node_values[row] = usable.dot(self.weights[value.node_kind.item(row)])

    def record_placed(
        self, free: FreeResources, row: int, column: int, feasibility: NodeFeasibility, score: float
    ) -> None:
        """Records that one replica was placed on a node with this score, on GPU `column` if it shares one."""
        self._node_equivalence.mark_changed((row,))
        self._node_values[row] -= score // 1
        if column >= 0:
            free_milli = free.gpu.item(row, column)
            self._usable_by_gpu.add_to(
                row,
                self._fragmentation_value.usable_change(
                    free_milli + feasibility.gpu_milli_on(row, column), free_milli
                ),
            )
        elif feasibility.gpus:
            self._usable_by_gpu.add_to(row, -feasibility.gpus * self._fragmentation_value.usable_of_full_gpu)

    def _node_totals(self, usable: Floats, rows: Ints) -> Floats:
        """Returns the values of these nodes. The result is exact, in any order of summation."""
        totals: Floats = np.einsum(
            "ij,ij->i", usable, self.weights.take(self._fragmentation_value.node_kind[rows], 0)
        )
        return totals

    def score_all(self, free: FreeResources, feasibility: NodeFeasibility) -> tuple[Values, Columns]:
        """Returns the scores of all nodes (INFEASIBLE if no replica fits), and the GPU that a replica would
        share on each."""
        rows, group_of, _ = self._node_equivalence.representatives(free)
        values, columns = np.empty(len(free.cpu)), np.full(len(free.cpu), NO_COLUMN, np.int8)
        self._score_rows(free, feasibility, rows, np.ones(len(rows), np.bool_), values, columns)
        return np.where(feasibility.allowed_nodes, values[rows][group_of], INFEASIBLE), columns[rows][
            group_of
        ]

    def rescore(
        self,
        free: FreeResources,
        feasibility: NodeFeasibility,
        rows: Ints,
        values: Values,
        gpu_columns: Columns,
    ) -> None:
        """Computes the same as `score_all` for these nodes only, and writes it into `values` and
        `gpu_columns`."""
        self._score_rows(free, feasibility, rows, feasibility.allowed_nodes[rows], values, gpu_columns)

    def _score_rows(
        self,
        free: FreeResources,
        feasibility: NodeFeasibility,
        rows: Ints,
        fits: Bools,
        values: Values,
        gpu_columns: Columns,
    ) -> None:
        """Writes the scores of these nodes. Writes GPU columns only for nodes where a replica fits and shares
        a GPU."""
        if feasibility.cpu:
            fits &= free.cpu[rows] >= feasibility.cpu
        if feasibility.memory:
            fits &= free.memory[rows] >= feasibility.memory
        for name, amount in feasibility.extras:
            fits &= free.extra(name, rows) >= amount
        values[rows] = INFEASIBLE
        nodes = rows[fits]
        if feasibility.gpus:
            nodes = nodes[
                np.add.reduce(free.gpu.take(nodes, 0) >= feasibility.gpu_needs_on(nodes), axis=1)
                >= feasibility.gpus
            ]
        if not len(nodes):
            return
        cpu, memory = free.cpu[nodes] - feasibility.cpu, free.memory[nodes] - feasibility.memory
        if feasibility.gpu_needs is not None and not feasibility.gpus:
            values[nodes], gpu_columns[nodes] = self._best_shared_gpu(free, feasibility, nodes, cpu, memory)
            return
        usable_on_gpus = self._usable_by_gpu.read(nodes)
        if feasibility.gpus:
            usable_on_gpus -= feasibility.gpus * self._fragmentation_value.usable_of_full_gpu
        loss = self._node_values[nodes]
        loss -= self._node_totals(
            self._fragmentation_value.bounded_usable(
                usable_on_gpus, self._fragmentation_value.gpu_limits(cpu, memory)
            ),
            nodes,
        )
        if feasibility.gpu_needs is None:
            loss += GPU_NODE_PENALTY * self._fragmentation_value.has_gpus[nodes]
        values[nodes] = loss

    def _best_shared_gpu(
        self, free: FreeResources, feasibility: NodeFeasibility, rows: Ints, cpu: Ints, memory: Ints
    ) -> tuple[Values, Columns]:
        """Returns the best GPU of each node to share, given the CPU and memory that would be left. Evaluates
        only one of the idle GPUs of a node."""
        gpu, needed, row_index = free.gpu.take(rows, 0), feasibility.gpu_needs_on(rows), np.arange(len(rows))
        feasible = gpu >= needed
        if feasibility.uniform_gpu_need is not None:
            most_free = gpu.argmax(axis=1)
            most_free_feasible = feasible[row_index, most_free]
            feasible &= gpu < WHOLE_GPU
            feasible[row_index, most_free] = most_free_feasible
        node, column = feasible.nonzero()
        losses = np.full(gpu.shape, INFEASIBLE)
        if len(node):
            value, nodes, before = self._fragmentation_value, rows[node], gpu[node, column]
            after = before - (needed if isinstance(needed, int) else needed[node, column])
            usable_on_gpus = self._usable_by_gpu.read(nodes)
            usable_on_gpus += value.usable_change(before, after)
            value_after = self._node_totals(
                value.bounded_usable(usable_on_gpus, value.gpu_limits(cpu[node], memory[node])), nodes
            )
            losses[node, column] = np.subtract(self._node_values[nodes], value_after)
        best = losses.argmin(axis=1)
        return losses[row_index, best], best.astype(np.int8)

"""Scores nodes by fragmentation: how much of the capacity that usual gangs could still use a replica
destroys."""

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

MAX_SCALAR_NODES = 4  # so many nodes are looked at one after another: arrays of them cost more than they save
GPU_NODE_PENALTY = 0.5  # a replica without GPUs prefers a node without GPUs at equal loss


class FragmentationScorer:
    """Follows one Free: what every node is worth now, kept up as nodes change.
    Scores are whole numbers below 2^53, and a half.

    weights: what shapes count; as on empty nodes until they are weighed.
    """

    def __init__(
        self, fragmentation_value: FragmentationValue, free: FreeResources, weights: Floats | None = None
    ) -> None:
        self._fragmentation_value, self.weights = (
            fragmentation_value,
            fragmentation_value.empty_weights if weights is None else weights,
        )
        self._node_equivalence = NodeEquivalence(fragmentation_value.node_kind)
        rows, like, _ = self._node_equivalence.representatives(free)
        on_cards = fragmentation_value.usable_on_gpus(free.gpu[rows])
        self._usable_by_gpu = CopyOnWriteRows(on_cards[like])
        self._node_values = self._node_totals(
            fragmentation_value.bounded_usable(
                on_cards, fragmentation_value.gpu_limits(free.cpu[rows], free.memory[rows])
            ),
            rows,
        )[like]

    def copy(self) -> FragmentationScorer:
        found = object.__new__(FragmentationScorer)
        found._fragmentation_value, found.weights, found._node_equivalence = (
            self._fragmentation_value,
            self.weights,
            self._node_equivalence.copy(),
        )
        found._usable_by_gpu, found._node_values = self._usable_by_gpu.copy(), self._node_values.copy()
        return found

    def update_weights(self, free: FreeResources) -> bool:
        """Let shapes count by how much room there is for them now; whether scores are others than before."""
        worth = self._fragmentation_value
        rows, like, times = self._node_equivalence.representatives(free)
        usable = worth.bounded_usable(
            self._usable_by_gpu.read(rows), worth.gpu_limits(free.cpu[rows], free.memory[rows])
        )
        weights = worth.weights(usable, rows, times)
        if np.array_equal(weights, self.weights):
            return False
        self.weights = weights
        self._node_values = self._node_totals(usable, rows)[like]
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
        worth = self._fragmentation_value
        on_cards = worth.usable_on_gpus(free.gpu.take(rows, 0))
        self._usable_by_gpu.write(rows, on_cards)
        self._node_values[rows] = self._node_totals(
            worth.bounded_usable(on_cards, worth.gpu_limits(free.cpu[rows], free.memory[rows])), rows
        )

    def _refresh_row(self, free: FreeResources, row: int) -> None:
        """One node: the same with far fewer steps."""
        worth = self._fragmentation_value
        on_cards = worth.usable_on_node(free.gpu[row])
        self._usable_by_gpu.write_one(row, on_cards)
        usable = worth.bounded_usable(
            on_cards, worth.gpu_limits_of_node(free.cpu.item(row), free.memory.item(row))
        )
        self._node_values[row] = usable.dot(self.weights[worth.node_kind.item(row)])

    def record_placed(
        self, free: FreeResources, row: int, column: int, feasibility: NodeFeasibility, score: float
    ) -> None:
        """One replica was put on a node, whose score was `score`, on that card if it shares one."""
        self._node_equivalence.mark_changed((row,))
        self._node_values[row] -= score // 1
        if column >= 0:
            left = free.gpu.item(row, column)
            self._usable_by_gpu.add_to(
                row,
                self._fragmentation_value.usable_change(left + feasibility.gpu_milli_on(row, column), left),
            )
        elif feasibility.gpus:
            self._usable_by_gpu.add_to(row, -feasibility.gpus * self._fragmentation_value.usable_of_full_gpu)

    def _node_totals(self, usable: Floats, rows: Ints) -> Floats:
        """What these nodes are worth: exact, whatever the order of the sum."""
        found: Floats = np.einsum(
            "ij,ij->i", usable, self.weights.take(self._fragmentation_value.node_kind[rows], 0)
        )
        return found

    def score_all(self, free: FreeResources, feasibility: NodeFeasibility) -> tuple[Values, Columns]:
        """The scores of all nodes, INFEASIBLE where no replica fits, and which card it would share there."""
        rows, like, _ = self._node_equivalence.representatives(free)
        values, columns = np.empty(len(free.cpu)), np.full(len(free.cpu), NO_COLUMN, np.int8)
        self._score_rows(free, feasibility, rows, np.ones(len(rows), np.bool_), values, columns)
        return np.where(feasibility.allowed_nodes, values[rows][like], INFEASIBLE), columns[rows][like]

    def rescore(
        self,
        free: FreeResources,
        feasibility: NodeFeasibility,
        rows: Ints,
        values: Values,
        gpu_columns: Columns,
    ) -> None:
        """As `everywhere`, of these nodes only, into what it said before."""
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
        """Into the rows of these nodes; of columns only where a replica fits and shares a card."""
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
        on_cards = self._usable_by_gpu.read(nodes)
        if feasibility.gpus:
            on_cards -= feasibility.gpus * self._fragmentation_value.usable_of_full_gpu
        destroyed = self._node_values[nodes]
        destroyed -= self._node_totals(
            self._fragmentation_value.bounded_usable(
                on_cards, self._fragmentation_value.gpu_limits(cpu, memory)
            ),
            nodes,
        )
        if feasibility.gpu_needs is None:
            destroyed += GPU_NODE_PENALTY * self._fragmentation_value.has_gpus[nodes]
        values[nodes] = destroyed

    def _best_shared_gpu(
        self, free: FreeResources, feasibility: NodeFeasibility, rows: Ints, cpu: Ints, memory: Ints
    ) -> tuple[Values, Columns]:
        """The best card of each node to share, where so much would be left.
        Of idle cards of a node one is looked at."""
        gpu, needed, each = free.gpu.take(rows, 0), feasibility.gpu_needs_on(rows), np.arange(len(rows))
        enough = gpu >= needed
        if feasibility.uniform_gpu_need is not None:
            roomiest = gpu.argmax(axis=1)
            kept = enough[each, roomiest]
            enough &= gpu < WHOLE_GPU
            enough[each, roomiest] = kept
        node, card = enough.nonzero()
        found = np.full(gpu.shape, INFEASIBLE)
        if len(node):
            worth, nodes, before = self._fragmentation_value, rows[node], gpu[node, card]
            after = before - (needed if isinstance(needed, int) else needed[node, card])
            on_cards = self._usable_by_gpu.read(nodes)
            on_cards += worth.usable_change(before, after)
            left = self._node_totals(
                worth.bounded_usable(on_cards, worth.gpu_limits(cpu[node], memory[node])), nodes
            )
            found[node, card] = np.subtract(self._node_values[nodes], left)
        best = found.argmin(axis=1)
        return found[each, best], best.astype(np.int8)

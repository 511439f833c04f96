"""Score rules: how good a node is for one replica. The smallest score wins, then the smallest id. Each rule
is one function, looked up by name.

"fragmentation" (the default) and "fgd" are in `fragmentation_score`, because they keep state. The other rules
are those that "Beware of Fragmentation" (USENIX ATC'23) compares with, implemented from its descriptions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.placement.feasibility import NodeFeasibility
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import Ints

Values = NDArray[np.float64]  # whole numbers below 2^53: exact
Columns = NDArray[np.int8]
Score = Callable[[FreeResources, NodeFeasibility, Ints], tuple[Values, Columns]]
NO_COLUMN = -1  # no GPU is shared
INFEASIBLE = float("inf")  # the score where no replica fits
SCORE_SCALE = 1 << 20


def fullest_shareable_gpu(free: FreeResources, feasibility: NodeFeasibility, rows: Ints) -> Columns:
    """Returns the GPU of each node with the least left that is enough for a share; the lowest of several."""
    if feasibility.gpu_needs is None or feasibility.gpus:
        return np.full(len(rows), NO_COLUMN, np.int8)
    gpu = free.gpu[rows]
    columns: Columns = (
        np.where(gpu >= feasibility.gpu_needs_on(rows), gpu, WHOLE_GPU + 1).argmin(axis=1).astype(np.int8)
    )
    return columns


def first_fit(free: FreeResources, feasibility: NodeFeasibility, rows: Ints) -> tuple[Values, Columns]:
    """Scores all nodes equally: the smallest id wins."""
    return np.zeros(len(rows)), fullest_shareable_gpu(free, feasibility, rows)


def best_fit(free: FreeResources, feasibility: NodeFeasibility, rows: Ints) -> tuple[Values, Columns]:
    """Scores by what is left, as fractions of the largest node. All resources have equal weight."""
    score = _fraction_left(free.cpu, free.node_table.cpu, rows) + _fraction_left(
        free.memory, free.node_table.memory, rows
    )
    score += _fraction_left(free.gpu.sum(axis=1), free.node_table.gpu.sum(axis=1), rows)
    return score, fullest_shareable_gpu(free, feasibility, rows)


def dot_product(free: FreeResources, feasibility: NodeFeasibility, rows: Ints) -> tuple[Values, Columns]:
    """Scores by the dot product of free and requested resources; the smallest wins (Panigrahy et al.,
    "Heuristics for Vector Bin Packing")."""
    node_table = free.node_table
    gpus = WHOLE_GPU * feasibility.gpus or (
        0
        if feasibility.gpu_needs is None
        else np.minimum(feasibility.gpu_needs, WHOLE_GPU).min(initial=WHOLE_GPU)
    )
    score = np.zeros(len(rows))
    for free_amounts, total, requested in (
        (free.cpu, node_table.cpu, feasibility.cpu),
        (free.memory, node_table.memory, feasibility.memory),
        (free.gpu.sum(axis=1), node_table.gpu.sum(axis=1), int(gpus)),
    ):
        score += np.floor(
            _fraction_left(free_amounts, total, rows) * (requested / max(int(total.max(initial=1)), 1))
        )
    return score, fullest_shareable_gpu(free, feasibility, rows)


def packed(free: FreeResources, feasibility: NodeFeasibility, rows: Ints) -> tuple[Values, Columns]:
    """Prefers GPUs in use, then idle GPUs of nodes in use, then idle nodes; the fuller node first."""
    columns = fullest_shareable_gpu(free, feasibility, rows)
    gpu, total = free.gpu[rows], free.node_table.gpu[rows]
    idle_node = (gpu == total).all(axis=1)
    idle_gpu = (
        np.ones(len(rows), np.bool_)
        if feasibility.gpu_needs is None or feasibility.gpus
        else gpu[np.arange(len(rows)), columns] == WHOLE_GPU
    )
    free_fraction = _fraction_left(
        free.gpu.sum(axis=1), free.node_table.gpu.sum(axis=1), rows
    ) + _fraction_left(free.cpu, free.node_table.cpu, rows)
    return (np.where(idle_gpu, 1, 0) + idle_node) * float(1 << 40) + free_fraction, columns


def _fraction_left(free: Ints, total: Ints, rows: Ints) -> Values:
    maximum = max(int(total.max(initial=1)), 1)
    fractions: Values = np.floor(free[rows] * (SCORE_SCALE / maximum))
    return fractions


def on_feasible_nodes(rule: Score) -> Score:
    """Applies the rule to nodes on which a replica fits, and returns INFEASIBLE for the others."""

    def score(free: FreeResources, fitting: NodeFeasibility, rows: Ints) -> tuple[Values, Columns]:
        fits = fitting.fits(free, rows)
        values, columns = np.full(len(rows), INFEASIBLE), np.full(len(rows), NO_COLUMN, np.int8)
        if fits.any():
            values[fits], columns[fits] = rule(free, fitting, rows[fits])
        return values, columns

    return score


SCORES: dict[str, Score] = {
    "best-fit": on_feasible_nodes(best_fit),
    "dot-product": on_feasible_nodes(dot_product),
    "packed": on_feasible_nodes(packed),
    "first-fit": on_feasible_nodes(first_fit),
}
# by name, whether it is the fluid measure (see fragmentation_value.py)
FRAGMENTATION_SCORES = {"fragmentation": True, "fgd": False}

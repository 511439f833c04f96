"""Scores that are updated as nodes change equal newly computed ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import Node
from hopyard.domain.gang import ANY_NODE
from hopyard.domain.ids import NodeId
from hopyard.domain.resources import WHOLE_GPU, Gpu, Resources
from hopyard.scheduler.placement.feasibility import NodeFeasibility, ReplicaRequest
from hopyard.scheduler.placement.fragmentation_score import MAX_SCALAR_NODES, FragmentationScorer
from hopyard.scheduler.placement.fragmentation_value import FragmentationValue
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import NodeTable
from hopyard.scheduler.placement.score_rules import INFEASIBLE
from hopyard.scheduler.placement.workload_mix import WorkloadMix

GIB = 1 << 30
CORES, MEMORY_GIB, COUNT = 32, 64, 3 * MAX_SCALAR_NODES
REQUESTS = [
    Resources(1000, 2 * GIB, 1),
    Resources(8000, GIB, 1),
    Resources(1000, 40 * GIB, 1),
    Resources(4000, 8 * GIB, 2),
    Resources(2000, 6 * GIB, gpu_milli=300),
    Resources(500, 20 * GIB, gpu_milli=500),
    Resources(2000, GIB),
]


def make_node_table() -> NodeTable:
    models = ("A100", "T4")
    return NodeTable(
        Node(
            NodeId(f"n{n:02}"),
            "local",
            CORES * 1000,
            MEMORY_GIB * GIB,
            tuple(Gpu(i, models[n % 2], 16 * GIB) for i in range(4)),
        )
        for n in range(COUNT)
    )


@pytest.mark.parametrize("fluid", [True, False])
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_updated_scores_equal_recomputed_scores(fluid: bool, data: st.DataObject) -> None:
    table = make_node_table()
    counts = data.draw(st.lists(st.integers(0, 5), min_size=len(REQUESTS), max_size=len(REQUESTS)))
    value = FragmentationValue(
        table,
        WorkloadMix.of([(one, ANY_NODE, count) for one, count in zip(REQUESTS, counts, strict=True)]),
        fluid=fluid,
    )
    free = FreeResources.of_empty_nodes(table)
    updated = FragmentationScorer(value, free)
    fittings = [NodeFeasibility(table, ReplicaRequest(request, ANY_NODE)) for request in REQUESTS]
    before = [updated.score_all(free, fitting) for fitting in fittings]
    for _ in range(data.draw(st.integers(1, 4))):
        rows = data.draw(
            st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=2 * MAX_SCALAR_NODES, unique=True)
        )
        for row in rows:
            free.cpu[row] = data.draw(st.integers(0, CORES)) * 1000
            free.memory[row] = data.draw(st.integers(0, MEMORY_GIB)) * GIB
            free.gpu[row] = data.draw(
                st.lists(st.sampled_from([0, 200, 500, 700, WHOLE_GPU]), min_size=4, max_size=4)
            )
        updated.refresh(free, rows)
        fresh = FragmentationScorer(value, free, updated.weights)
        for fitting, (values, columns) in zip(fittings, before, strict=True):
            updated.rescore(free, fitting, np.array(rows), values, columns)
            fresh_scores, cards = fresh.score_all(free, fitting)
            np.testing.assert_array_equal(values, fresh_scores)
            is_feasible = fresh_scores != INFEASIBLE
            np.testing.assert_array_equal(columns[is_feasible], cards[is_feasible])

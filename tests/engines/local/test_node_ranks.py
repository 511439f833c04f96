"""The ranks of replicas on their nodes."""

from __future__ import annotations

from hopyard.domain.gang import Assignment
from hopyard.domain.ids import NodeId
from hopyard.engines.local.node_ranks import NodeRank, node_ranks


def test_nodes_are_numbered_by_their_first_ranks() -> None:
    nodes = ("b", "a", "b", "a", "b")
    assignments = [Assignment(rank, NodeId(node)) for rank, node in enumerate(nodes)]
    assert node_ranks(assignments[::-1]) == {
        0: NodeRank(0, 0, 3),
        1: NodeRank(1, 0, 2),
        2: NodeRank(0, 1, 3),
        3: NodeRank(1, 1, 2),
        4: NodeRank(0, 2, 3),
    }

"""The ranks of the replicas of a gang on their nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopyard.domain.gang import Assignment
from hopyard.domain.ids import NodeId


@dataclass(frozen=True, slots=True)
class NodeRank:
    """node_rank: of the node among those of the gang, in the order of their first ranks. local_rank,
    local_world_size: among the replicas on the same node."""

    node_rank: int
    local_rank: int
    local_world_size: int


def node_ranks(assignments: Sequence[Assignment]) -> Mapping[int, NodeRank]:
    """Returns the place of each rank."""
    in_order = sorted(assignments, key=lambda assignment: assignment.rank)
    sizes = Counter(assignment.node for assignment in in_order)
    node_numbers = {node: number for number, node in enumerate(sizes)}
    placed: Counter[NodeId] = Counter()
    ranks: dict[int, NodeRank] = {}
    for assignment in in_order:
        node = assignment.node
        ranks[assignment.rank] = NodeRank(node_numbers[node], placed[node], sizes[node])
        placed[node] += 1
    return ranks

"""Decides whether a gang could ever start on this cluster."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.domain.cluster import Node
from hopyard.domain.gang import Gang
from hopyard.domain.placement_causes import NeverFitsCause
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import NodeTable
from hopyard.scheduler.placement.unschedulable import fits, why_never


def never_fits(gang: Gang, nodes: Iterable[Node]) -> NeverFitsCause | None:
    """Returns why the gang is larger than all these nodes when empty, with the missing amount and the nearest
    node and pool; None if it fits. Unschedulable nodes count, because they may come back. Without any node
    nothing is refused."""
    node_table = NodeTable(node.as_schedulable() for node in nodes)
    if not node_table.nodes:
        return None
    free = FreeResources.of_empty_nodes(node_table)
    smallest = gang.with_replica_counts([role.required_replicas for role in gang.roles])
    return None if fits(free, smallest) else why_never(free, smallest)

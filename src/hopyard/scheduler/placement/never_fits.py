"""Whether a gang could ever start here."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.domain.cluster import Node
from hopyard.domain.gang import Gang
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import NodeTable
from hopyard.scheduler.placement.unschedulable import fits, too_large_message


def never_fits(gang: Gang, nodes: Iterable[Node]) -> str | None:
    """Why the gang is larger than all these nodes even if nothing ran on them, naming what is missing and the
    nearest node and pool; None where it fits. Nodes that are not open count: they may come back. Without any
    node nothing is refused."""
    ground = NodeTable(node.as_schedulable() for node in nodes)
    if not ground.nodes:
        return None
    free = FreeResources.of_empty_nodes(ground)
    smallest = gang.with_replica_counts([role.required_replicas for role in gang.roles])
    return None if fits(free, smallest) else too_large_message(smallest, free)

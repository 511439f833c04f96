"""Whether a gang could ever start here."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.domain.cluster import Node
from hopyard.domain.gang import Gang
from hopyard.scheduler.placement.explain import fits, too_large
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import Ground


def never_fits(gang: Gang, nodes: Iterable[Node]) -> str | None:
    """Why the gang is larger than all these nodes even if nothing ran on them, naming what is missing and the
    nearest node and pool; None where it fits. Nodes that are not open count: they may come back. Without any
    node nothing is refused."""
    ground = Ground(node.opened() for node in nodes)
    if not ground.nodes:
        return None
    free = Free.whole(ground)
    smallest = gang.sized([role.fewest for role in gang.roles])
    return None if fits(free, smallest) else too_large(smallest, free)

"""Which shapes no gang of finds room for, remembered while nothing becomes free that could change it."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.domain.gang import Role
from hopyard.domain.ids import NodeId
from hopyard.domain.queue import CPU, GPU, MEMORY, Amounts
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.cycle.pending_gangs import GangClass
from hopyard.scheduler.placement.capacity import Capacity

MAX_FREED_NODES = 64  # nodes on which something became free: everything is looked at anew


class NoCapacityCache:
    """Kept between turns. It never says of a shape that it is full when it is not: taking makes no room, and
    where something was given back, a shape stays full only if not one of its replicas fits there now."""

    def __init__(self) -> None:
        self._full_classes: dict[GangClass, None] = {}
        self._freed_nodes: set[NodeId] = set()

    def invalidate_nodes(self, nodes: Iterable[NodeId]) -> None:
        """Something was given back there, or they changed."""
        self._freed_nodes.update(nodes)

    def clear(self) -> None:
        self._full_classes.clear()
        self._freed_nodes.clear()

    def add(self, gang_classes: Iterable[GangClass]) -> None:
        """There is no room for these now, with all in place that starts."""
        self._full_classes.update(dict.fromkeys(gang_classes))

    def still_full(self, capacity: Capacity) -> list[GangClass]:
        """Those that are full for certain."""
        left = (
            [free for node in self._freed_nodes if (free := capacity.free_on(node))]
            if len(self._freed_nodes) <= MAX_FREED_NODES
            else None
        )
        self._freed_nodes.clear()
        if left is None:
            self._full_classes.clear()
        else:
            kept = (
                shape
                for shape in self._full_classes
                if shape.pending_count and not any(_class_may_fit(shape, free) for free in left)
            )
            self._full_classes = dict.fromkeys(kept)
        return list(self._full_classes)


def _class_may_fit(gang_class: GangClass, free: Amounts) -> bool:
    return any(_replica_may_fit(role, free) for role in gang_class.representative.roles)


def _replica_may_fit(role: Role, free: Amounts) -> bool:
    asked = role.resources
    gpus = asked.gpus * WHOLE_GPU or asked.gpu_milli or int(asked.is_gpu_share)
    return asked.cpu_milli <= free[CPU] and asked.memory_bytes <= free[MEMORY] and gpus <= free[GPU]

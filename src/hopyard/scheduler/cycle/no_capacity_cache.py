"""Remembers shapes without capacity until released resources could change that."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.domain.gang import Role
from hopyard.domain.ids import NodeId
from hopyard.domain.queue import CPU, GPU, MEMORY, Amounts
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.cycle.pending_gangs import GangClass
from hopyard.scheduler.placement.capacity import Capacity

MAX_FREED_NODES = 64  # with more freed nodes than this, all shapes are examined again


class NoCapacityCache:
    """Kept between cycles. It never reports a shape as full by mistake. Allocation frees no capacity. After a
    release, a shape stays full only if none of its replicas fits on the changed nodes."""

    def __init__(self) -> None:
        self._full_classes: dict[GangClass, None] = {}
        self._freed_nodes: set[NodeId] = set()

    def invalidate_nodes(self, nodes: Iterable[NodeId]) -> None:
        """Records that resources were released on these nodes, or that the nodes changed."""
        self._freed_nodes.update(nodes)

    def clear(self) -> None:
        self._full_classes.clear()
        self._freed_nodes.clear()

    def add(self, gang_classes: Iterable[GangClass]) -> None:
        """Records that these shapes do not fit now, with all starts of this cycle in place."""
        self._full_classes.update(dict.fromkeys(gang_classes))

    def still_full(self, capacity: Capacity) -> list[GangClass]:
        """Returns the shapes that certainly do not fit."""
        free_amounts = (
            [free for node in self._freed_nodes if (free := capacity.free_on(node))]
            if len(self._freed_nodes) <= MAX_FREED_NODES
            else None
        )
        self._freed_nodes.clear()
        if free_amounts is None:
            self._full_classes.clear()
        else:
            still_full = (
                shape
                for shape in self._full_classes
                if shape.pending_count and not any(_class_may_fit(shape, free) for free in free_amounts)
            )
            self._full_classes = dict.fromkeys(still_full)
        return list(self._full_classes)


def _class_may_fit(gang_class: GangClass, free: Amounts) -> bool:
    return any(_replica_may_fit(role, free) for role in gang_class.representative.roles)


def _replica_may_fit(role: Role, free: Amounts) -> bool:
    request = role.resources
    gpus = request.gpus * WHOLE_GPU or request.gpu_milli or int(request.is_gpu_share)
    return request.cpu_milli <= free[CPU] and request.memory_bytes <= free[MEMORY] and gpus <= free[GPU]

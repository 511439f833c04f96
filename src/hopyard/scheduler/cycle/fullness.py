"""Which shapes no gang of finds room for, remembered while nothing becomes free that could change it."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.domain.gang import Role
from hopyard.domain.ids import NodeId
from hopyard.domain.queue import CPU, GPU, MEMORY, Amounts
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.cycle.line import Shape
from hopyard.scheduler.placement.capacity import Capacity

MANY = 64  # nodes on which something became free: everything is looked at anew


class Fullness:
    """Kept between turns. It never says of a shape that it is full when it is not: taking makes no room, and
    where something was given back, a shape stays full only if not one of its replicas fits there now."""

    def __init__(self) -> None:
        self._full: dict[Shape, None] = {}
        self._freed: set[NodeId] = set()

    def freed(self, nodes: Iterable[NodeId]) -> None:
        """Something was given back there, or they changed."""
        self._freed.update(nodes)

    def forget(self) -> None:
        self._full.clear()
        self._freed.clear()

    def found(self, shapes: Iterable[Shape]) -> None:
        """There is no room for these now, with all in place that starts."""
        self._full.update(dict.fromkeys(shapes))

    def now(self, capacity: Capacity) -> list[Shape]:
        """Those that are full for certain."""
        left = (
            [free for node in self._freed if (free := capacity.left_on(node))]
            if len(self._freed) <= MANY
            else None
        )
        self._freed.clear()
        if left is None:
            self._full.clear()
        else:
            kept = (
                shape
                for shape in self._full
                if shape.waiting and not any(_may_fit(shape, free) for free in left)
            )
            self._full = dict.fromkeys(kept)
        return list(self._full)


def _may_fit(shape: Shape, free: Amounts) -> bool:
    return any(_replica_may_fit(role, free) for role in shape.example.roles)


def _replica_may_fit(role: Role, free: Amounts) -> bool:
    asked = role.resources
    gpus = asked.gpus * WHOLE_GPU or asked.gpu_milli or int(asked.shares_gpu)
    return asked.cpu_milli <= free[CPU] and asked.memory_bytes <= free[MEMORY] and gpus <= free[GPU]

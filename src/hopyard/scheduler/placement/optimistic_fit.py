"""What nodes could hold if some runs left, told quickly."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hopyard.domain.gang import Gang, Placement, Role
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.feasibility import min_gpu_milli


class OptimisticFit:
    """It is hopeful: cards of a node are counted together, whatever their model, and roles one by one.
    So what it says does not fit does not, and what it says does may not.
    """

    def __init__(self, capacity: Capacity, ended: Iterable[Placement]) -> None:
        """ended: what has left, beside what is free."""
        self._capacity = capacity
        self._cpu, self._memory, self._gpu = capacity.free_totals_without(ended)

    def may_fit(self, gang: Gang) -> bool:
        """Whether there may be room for as many replicas as it asks for."""
        return all(self._max_replicas(role) >= role.replicas for role in gang.roles)

    def _max_replicas(self, role: Role) -> int:
        asked = role.resources
        rooms = [
            left // least
            for left, least in (
                (self._gpu, min_gpu_milli(asked)),
                (self._cpu, asked.cpu_milli),
                (self._memory, asked.memory_bytes),
            )
            if least
        ]
        if not rooms:
            return role.replicas
        room = rooms[0] if len(rooms) == 1 else np.minimum.reduce(rooms)
        return int(np.maximum(room, 0).sum(where=self._capacity.allowed_nodes(role.where)))

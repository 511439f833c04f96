"""A cheap upper bound of what nodes can hold if some runs end."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hopyard.domain.gang import Gang, Placement, Role
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.feasibility import min_gpu_milli


class OptimisticFit:
    """Optimistic: GPUs of a node are added up regardless of model, and roles are checked one by one. If it
    says no, the gang does not fit; if it says yes, the gang may not fit."""

    def __init__(self, capacity: Capacity, ended: Iterable[Placement]) -> None:
        """ended: what has left, beside what is free."""
        self._capacity = capacity
        self._cpu, self._memory, self._gpu = capacity.free_totals_without(ended)

    def may_fit(self, gang: Gang) -> bool:
        """Returns whether there may be room for all requested replicas."""
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

"""A cheap upper bound of what nodes can hold if some runs end."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hopyard.domain.gang import Gang, Placement, Role
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.feasibility import min_gpu_milli


class OptimisticFit:
    """An optimistic check: the GPUs of a node are added up regardless of model, and roles are checked one by
    one. A negative result is certain: the gang does not fit. A positive result is not: the gang may not
    fit."""

    def __init__(self, capacity: Capacity, ended: Iterable[Placement]) -> None:
        """ended: the placements of runs that end, whose resources count as free."""
        self._capacity = capacity
        self._cpu, self._memory, self._gpu = capacity.free_totals_without(ended)

    def may_fit(self, gang: Gang) -> bool:
        """Returns whether there may be capacity for all requested replicas."""
        return all(self._max_replicas(role) >= role.replicas for role in gang.roles)

    def _max_replicas(self, role: Role) -> int:
        request = role.resources
        limits = [
            free_amounts // per_replica
            for free_amounts, per_replica in (
                (self._gpu, min_gpu_milli(request)),
                (self._cpu, request.cpu_milli),
                (self._memory, request.memory_bytes),
            )
            if per_replica
        ]
        if not limits:
            return role.replicas
        replicas = limits[0] if len(limits) == 1 else np.minimum.reduce(limits)
        return int(np.maximum(replicas, 0).sum(where=self._capacity.allowed_nodes(role.where)))

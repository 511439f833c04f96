"""The resource shapes that pending and running gangs request, for which placement preserves capacity."""

from __future__ import annotations

from hopyard.domain.gang import Gang
from hopyard.scheduler.placement.workload_mix import ReplicaShape, WorkloadMix


class Demand:
    """Updated as gangs come and go. The workload mix is rebuilt only if it changed."""

    def __init__(self) -> None:
        self._counts: dict[ReplicaShape, int] = {}
        self._mix: WorkloadMix | None = None

    def record(self, gang: Gang, delta: int) -> None:
        """Records that the gang arrived (1) or left (-1)."""
        for role in gang.roles:
            request = role.resources
            if not (request.gpus or request.is_gpu_share):
                continue
            key = request, role.where
            before = self._counts.get(key, 0)
            after = before + delta * role.replicas
            if after:
                self._counts[key] = after
            else:
                del self._counts[key]
            if before.bit_length() != after.bit_length():  # see `WorkloadMix.rounded`
                self._mix = None

    def mix(self) -> WorkloadMix:
        if self._mix is None:
            self._mix = WorkloadMix.of(self._counts).rounded()
        return self._mix

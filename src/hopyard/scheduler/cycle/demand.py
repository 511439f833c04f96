"""What those ask for that wait and run, in the shapes for which room is to be kept."""

from __future__ import annotations

from hopyard.domain.gang import Gang
from hopyard.scheduler.placement.workload_mix import ReplicaShape, WorkloadMix


class Demand:
    """Kept up as gangs come and go; the mix is made anew only when it is another one."""

    def __init__(self) -> None:
        self._counts: dict[ReplicaShape, int] = {}
        self._mix: WorkloadMix | None = None

    def record(self, gang: Gang, delta: int) -> None:
        """It came (1), or went (-1)."""
        for role in gang.roles:
            asked = role.resources
            if not (asked.gpus or asked.is_gpu_share):
                continue
            key = asked, role.where
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

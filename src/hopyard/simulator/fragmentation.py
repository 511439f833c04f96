"""Computes which part of the free capacity is of no use to the runs of a workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from hopyard.domain.gang import Role
from hopyard.domain.resources import WHOLE_GPU, Resources
from hopyard.simulator.allocation_audit import AllocationAudit

MAX_REQUESTS = 24


class RequestMix:
    """The typical requests per replica of a workload, with their frequencies. Only requests with GPUs
    count."""

    def __init__(self, roles: Iterable[Role]) -> None:
        counts: Counter[Resources] = Counter()
        for role in roles:
            if role.resources.gpus or role.resources.gpu_milli:
                counts[role.resources] += role.replicas
        common = counts.most_common(MAX_REQUESTS)
        total = sum(count for _, count in common)
        self._frequent = [(shape, count / total) for shape, count in common]

    def fragmentation(self, allocations: AllocationAudit) -> float:
        """Returns the part of all free GPU capacity, 0 to 1, that a run drawn from the workload cannot use
        ("Beware of Fragmentation", Weng et al., USENIX ATC'23, section 3, without its classes of models).
        Returns 0 if nothing is free."""
        gpu = np.where(allocations.ready[:, None], allocations.gpu.clip(min=0), 0)
        free = gpu.sum(axis=1)
        total = int(free.sum())
        if not total or not self._frequent:
            return 0.0
        unusable = sum(
            part * float((free - _usable_gpu_milli(shape, allocations, gpu)).sum())
            for shape, part in self._frequent
        )
        return unusable / total


def _usable_gpu_milli(shape: Resources, allocations: AllocationAudit, gpu: np.ndarray) -> np.ndarray:
    """Returns the thousandths of free GPUs per node that such a replica can use."""
    need = WHOLE_GPU if shape.gpus else shape.gpu_milli
    fits = gpu >= need
    hosts = (
        (allocations.cpu >= shape.cpu_milli)
        & (allocations.memory >= shape.memory_bytes)
        & (fits.sum(axis=1) >= max(shape.gpus, 1))
    )
    usable: np.ndarray = np.where(fits, gpu, 0).sum(axis=1) * hosts
    return usable

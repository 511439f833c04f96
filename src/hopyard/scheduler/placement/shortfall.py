"""Finds what one node lacks for one replica, resource by resource."""

from __future__ import annotations

from hopyard.domain.placement_causes import (
    CpuShortfall,
    ExtraShortfall,
    GpuShortfall,
    MemoryShortfall,
    Shortfall,
)
from hopyard.domain.resources import Resources
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import GPU_NOT_ALLOWED


def shortfalls(request: Resources, free: FreeResources, row: int) -> tuple[Shortfall, ...]:
    """Returns the resources of which this node has too little free for one replica."""
    result: list[Shortfall] = []
    gpus = _gpu_shortfall(request, free, row)
    if gpus is not None:
        result.append(gpus)
    cpu, memory = max(int(free.cpu[row]), 0), max(int(free.memory[row]), 0)
    if request.cpu_milli > cpu:
        result.append(CpuShortfall(request.cpu_milli, cpu, int(free.node_table.cpu[row])))
    if request.memory_bytes > memory:
        result.append(MemoryShortfall(request.memory_bytes, memory, int(free.node_table.memory[row])))
    for name, amount in request.extras:
        free_amount = max(int(free.extras[name][row]), 0) if name in free.extras else 0
        total = int(free.node_table.extras[name][row]) if name in free.extras else 0
        if amount > free_amount:
            result.append(ExtraShortfall(name, amount, free_amount, total))
    return tuple(result)


def _gpu_shortfall(request: Resources, free: FreeResources, row: int) -> GpuShortfall | None:
    """Returns None if the node has enough GPUs."""
    if not (request.gpus or request.is_gpu_share):
        return None
    node_table = free.node_table
    needs = node_table.gpu_needs(request, frozenset())[node_table.gpu_model[row]].tolist()
    usable = [
        (need, free_milli)
        for need, free_milli in zip(needs, free.gpu[row].tolist(), strict=True)
        if need != GPU_NOT_ALLOWED
    ]
    count = sum(free_milli >= need for need, free_milli in usable)
    if count >= max(request.gpus, 1):
        return None
    largest = max((max(free_milli, 0) for _, free_milli in usable), default=0)
    return GpuShortfall(request, node_table.gpus[row], len(usable), count, largest)

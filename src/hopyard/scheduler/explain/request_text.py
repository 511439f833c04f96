"""Formats requests, and what a node lacks for one replica, resource by resource."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from hopyard.domain.gang import NodeSelector
from hopyard.domain.placement_causes import (
    CpuShortfall,
    ExtraShortfall,
    GpuShortfall,
    MemoryShortfall,
    Shortfall,
)
from hopyard.domain.resources import UNKNOWN_GPU_MODEL, WHOLE_GPU, Resources
from hopyard.scheduler.explain.amount_text import format_bytes, format_count, format_cpus, format_gpus


@dataclass(frozen=True, slots=True)
class ShortfallText:
    """requested: how much of one resource is needed. total: how much of it the node has in all; free: how
    much of that is left; missing: by how much that is too little."""

    requested: str
    total: str
    free: str
    missing: str


def format_request(request: Resources) -> str:
    """Returns the whole request: "2 GPUs, 4 CPUs, 8 GiB of memory"."""
    parts = [_format_gpus(request)] if request.gpus or request.is_gpu_share else []
    parts += [format_cpus(request.cpu_milli)] if request.cpu_milli else []
    parts += [f"{format_bytes(request.memory_bytes)} of memory"] if request.memory_bytes else []
    parts += [f"{amount} {name}" for name, amount in request.extras if amount]
    return ", ".join(parts) or "nothing"


def format_where(where: NodeSelector) -> str:
    """Returns "in pool `a` or `b` with rack=1"; empty if every node is allowed."""
    parts = [f"in pool {' or '.join(f'`{pool}`' for pool in where.pools)}"] if where.pools else []
    parts += [f"with {', '.join(f'{name}={value}' for name, value in where.labels)}"] if where.labels else []
    return " ".join(parts)


def format_shortfall(shortfall: Shortfall) -> ShortfallText:
    match shortfall:
        case CpuShortfall(requested, free, total):
            return ShortfallText(
                format_cpus(requested),
                format_cpus(total),
                f"{free / 1000:g} of {format_cpus(total)} are free",
                f"{format_cpus(requested - free)} too few",
            )
        case MemoryShortfall(requested, free, total):
            return ShortfallText(
                f"{format_bytes(requested)} of memory",
                f"{format_bytes(total)} of memory",
                f"{format_bytes(free)} of {format_bytes(total)} memory are free",
                f"{format_bytes(requested - free)} too little",
            )
        case ExtraShortfall(name, requested, free, total):
            return ShortfallText(
                f"{requested} {name}",
                f"{total or 'no'} {name}",
                f"{free} of {total} {name} {'is' if free == 1 else 'are'} free",
                f"{requested - free} too few",
            )
        case GpuShortfall():
            return _gpu_shortfall_text(shortfall)
        case _:
            assert_never(shortfall)


def _gpu_shortfall_text(shortfall: GpuShortfall) -> ShortfallText:
    request, usable, free = shortfall.request, shortfall.usable, shortfall.free
    total = _format_node_gpus(shortfall)
    if request.gpus:
        free_text = f"{free} of {usable} {'is' if free == 1 else 'are'} free"
        return ShortfallText(_format_gpus(request), total, free_text, f"{request.gpus - free} too few")
    largest = f"{shortfall.largest_free_milli / WHOLE_GPU:g}"
    missing = "each is too small" if request.gpu_memory_bytes and not usable else "too little"
    return ShortfallText(
        _format_gpus(request), total, f"at most {largest} of one of {usable} is free", missing
    )


def _format_gpus(request: Resources) -> str:
    model = " or ".join(request.gpu_models)
    if request.gpus:
        return format_gpus(request.gpus, model)
    card = f"{model} GPU" if model else "GPU"
    if request.gpu_memory_bytes:
        return f"{format_bytes(request.gpu_memory_bytes)} of one {card}"
    return f"{request.gpu_milli / WHOLE_GPU:g} of one {card}"


def _format_node_gpus(shortfall: GpuShortfall) -> str:
    gpus = shortfall.node_gpus
    if shortfall.usable:
        return format_gpus(shortfall.usable, " or ".join(shortfall.request.gpu_models))
    if not gpus:
        return "no GPU"
    models = {gpu.model for gpu in gpus}
    if models == {UNKNOWN_GPU_MODEL}:
        return f"{format_gpus(len(gpus))} of no known model"
    largest = max(gpu.memory_bytes for gpu in gpus)
    with_memory = f" with {format_bytes(largest)}" if shortfall.request.gpu_memory_bytes else ""
    return format_count(len(gpus), f"{', '.join(sorted(models))} GPU") + with_memory

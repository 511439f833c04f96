"""Describes what one node lacks for one replica, resource by resource."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.gang import NodeSelector
from hopyard.domain.resources import UNKNOWN_GPU_MODEL, WHOLE_GPU, Resources
from hopyard.scheduler.amount_text import format_bytes, format_count, format_cpus, format_gpus
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import GPU_NOT_ALLOWED


@dataclass(frozen=True, slots=True)
class Shortfall:
    """requested: how much of one resource is needed. total: how much of it the node has in all; free: how
    much of that is left; missing: by how much that is too little."""

    requested: str
    total: str
    free: str
    missing: str


def shortfalls(request: Resources, free: FreeResources, row: int) -> list[Shortfall]:
    """Returns the resources of which this node has too little free for one replica."""
    found = [] if _has_enough_gpus(request, free, row) else [_gpu_shortfall(request, free, row)]
    cpu, memory = int(free.cpu[row]), int(free.memory[row])
    total_cpu, total_memory = int(free.node_table.cpu[row]), int(free.node_table.memory[row])
    if request.cpu_milli and request.cpu_milli > cpu:
        left = f"{max(cpu, 0) / 1000:g} of {format_cpus(total_cpu)} are free"
        short = f"{format_cpus(request.cpu_milli - max(cpu, 0))} too few"
        found.append(Shortfall(format_cpus(request.cpu_milli), format_cpus(total_cpu), left, short))
    if request.memory_bytes and request.memory_bytes > memory:
        left = f"{format_bytes(memory)} of {format_bytes(total_memory)} memory are free"
        short = f"{format_bytes(request.memory_bytes - max(memory, 0))} too little"
        asked, has = (f"{format_bytes(amount)} of memory" for amount in (request.memory_bytes, total_memory))
        found.append(Shortfall(asked, has, left, short))
    for name, amount in request.extras:
        have = int(free.extras[name][row]) if name in free.extras else 0
        total = int(free.node_table.extras[name][row]) if name in free.extras else 0
        if amount > have:
            left = f"{max(have, 0)} of {total} {name} {'is' if have == 1 else 'are'} free"
            short = f"{amount - max(have, 0)} too few"
            found.append(Shortfall(f"{amount} {name}", f"{total or 'no'} {name}", left, short))
    return found


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


def _format_gpus(request: Resources) -> str:
    model = " or ".join(request.gpu_models)
    if request.gpus:
        return format_gpus(request.gpus, model)
    card = f"{model} GPU" if model else "GPU"
    if request.gpu_memory_bytes:
        return f"{format_bytes(request.gpu_memory_bytes)} of one {card}"
    return f"{request.gpu_milli / WHOLE_GPU:g} of one {card}"


def _gpu_needs(request: Resources, free: FreeResources, row: int) -> list[tuple[int, int, int]]:
    """Of the cards that may be used: what one replica takes of each, what is left of it, and what it is in
    all."""
    ground = free.node_table
    needs = ground.gpu_needs(request, frozenset())[ground.gpu_model[row]].tolist()
    rows = zip(needs, free.gpu[row].tolist(), ground.gpu[row].tolist(), strict=True)
    return [(need, left, total) for need, left, total in rows if need != GPU_NOT_ALLOWED]


def _has_enough_gpus(request: Resources, free: FreeResources, row: int) -> bool:
    if not (request.gpus or request.is_gpu_share):
        return True
    return sum(left >= need for need, left, _ in _gpu_needs(request, free, row)) >= max(request.gpus, 1)


def _gpu_shortfall(request: Resources, free: FreeResources, row: int) -> Shortfall:
    needs = _gpu_needs(request, free, row)
    has = _format_node_gpus(request, free, row, len(needs))
    if request.gpus:
        whole = sum(left >= need for need, left, _ in needs)
        left = f"{whole} of {len(needs)} {'is' if whole == 1 else 'are'} free"
        return Shortfall(_format_gpus(request), has, left, f"{request.gpus - whole} too few")
    roomiest = max((max(left, 0) for _, left, _ in needs), default=0) / WHOLE_GPU
    short = "each is too small" if request.gpu_memory_bytes and not needs else "too little"
    return Shortfall(
        _format_gpus(request), has, f"at most {roomiest:g} of one of {len(needs)} is free", short
    )


def _format_node_gpus(request: Resources, free: FreeResources, row: int, usable: int) -> str:
    cards = free.node_table.gpus[row]
    if usable:
        return format_gpus(usable, " or ".join(request.gpu_models))
    if not cards:
        return "no GPU"
    models = {gpu.model for gpu in cards}
    if models == {UNKNOWN_GPU_MODEL}:
        return f"{format_gpus(len(cards))} of no known model"
    largest = max(gpu.memory_bytes for gpu in cards)
    with_memory = f" with {format_bytes(largest)}" if request.gpu_memory_bytes else ""
    return format_count(len(cards), f"{', '.join(sorted(models))} GPU") + with_memory

"""What one node lacks for one replica, resource by resource, in words."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.gang import Where
from hopyard.domain.resources import UNNAMED_GPU, WHOLE_GPU, Resources
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import NEVER
from hopyard.scheduler.reasons import cpus, gpus, plural, size


@dataclass(frozen=True, slots=True)
class Lack:
    """asked: how much of one resource is needed. has: how much of it the node has in all; free: how much of
    that is left; short: by how much that is too little."""

    asked: str
    has: str
    free: str
    short: str


def lacks(request: Resources, free: Free, row: int) -> list[Lack]:
    """Of what this node has too little left for one replica."""
    found = [] if _cards_suffice(request, free, row) else [_of_cards(request, free, row)]
    cpu, memory = int(free.cpu[row]), int(free.memory[row])
    total_cpu, total_memory = int(free.ground.cpu[row]), int(free.ground.memory[row])
    if request.cpu_milli and request.cpu_milli > cpu:
        left = f"{max(cpu, 0) / 1000:g} of {cpus(total_cpu)} are free"
        short = f"{cpus(request.cpu_milli - max(cpu, 0))} too few"
        found.append(Lack(cpus(request.cpu_milli), cpus(total_cpu), left, short))
    if request.memory_bytes and request.memory_bytes > memory:
        left = f"{size(memory)} of {size(total_memory)} memory are free"
        short = f"{size(request.memory_bytes - max(memory, 0))} too little"
        asked, has = (f"{size(amount)} of memory" for amount in (request.memory_bytes, total_memory))
        found.append(Lack(asked, has, left, short))
    for name, amount in request.extras:
        have = int(free.extras[name][row]) if name in free.extras else 0
        total = int(free.ground.extras[name][row]) if name in free.extras else 0
        if amount > have:
            left = f"{max(have, 0)} of {total} {name} {'is' if have == 1 else 'are'} free"
            short = f"{amount - max(have, 0)} too few"
            found.append(Lack(f"{amount} {name}", f"{total or 'no'} {name}", left, short))
    return found


def describe(request: Resources) -> str:
    """The whole request: "2 GPUs, 4 CPUs, 8 GiB of memory"."""
    parts = [_cards(request)] if request.gpus or request.shares_gpu else []
    parts += [cpus(request.cpu_milli)] if request.cpu_milli else []
    parts += [f"{size(request.memory_bytes)} of memory"] if request.memory_bytes else []
    parts += [f"{amount} {name}" for name, amount in request.extras if amount]
    return ", ".join(parts) or "nothing"


def places(where: Where) -> str:
    """ "in pool `a` or `b` with rack=1"; nothing where every node may be used."""
    parts = [f"in pool {' or '.join(f'`{pool}`' for pool in where.pools)}"] if where.pools else []
    parts += [f"with {', '.join(f'{name}={value}' for name, value in where.labels)}"] if where.labels else []
    return " ".join(parts)


def _cards(request: Resources) -> str:
    model = " or ".join(request.gpu_models)
    if request.gpus:
        return gpus(request.gpus, model)
    card = f"{model} GPU" if model else "GPU"
    if request.gpu_memory_bytes:
        return f"{size(request.gpu_memory_bytes)} of one {card}"
    return f"{request.gpu_milli / WHOLE_GPU:g} of one {card}"


def _needs(request: Resources, free: Free, row: int) -> list[tuple[int, int, int]]:
    """Of the cards that may be used: what one replica takes of each, what is left of it, and what it is in
    all."""
    ground = free.ground
    needs = ground.needs(request, frozenset())[ground.card[row]].tolist()
    rows = zip(needs, free.gpu[row].tolist(), ground.gpu[row].tolist(), strict=True)
    return [(need, left, total) for need, left, total in rows if need != NEVER]


def _cards_suffice(request: Resources, free: Free, row: int) -> bool:
    if not (request.gpus or request.shares_gpu):
        return True
    return sum(left >= need for need, left, _ in _needs(request, free, row)) >= max(request.gpus, 1)


def _of_cards(request: Resources, free: Free, row: int) -> Lack:
    needs = _needs(request, free, row)
    has = _has_cards(request, free, row, len(needs))
    if request.gpus:
        whole = sum(left >= need for need, left, _ in needs)
        left = f"{whole} of {len(needs)} {'is' if whole == 1 else 'are'} free"
        return Lack(_cards(request), has, left, f"{request.gpus - whole} too few")
    roomiest = max((max(left, 0) for _, left, _ in needs), default=0) / WHOLE_GPU
    short = "each is too small" if request.gpu_memory_bytes and not needs else "too little"
    return Lack(_cards(request), has, f"at most {roomiest:g} of one of {len(needs)} is free", short)


def _has_cards(request: Resources, free: Free, row: int, usable: int) -> str:
    cards = free.ground.gpus[row]
    if usable:
        return gpus(usable, " or ".join(request.gpu_models))
    if not cards:
        return "no GPU"
    models = {gpu.model for gpu in cards}
    if models == {UNNAMED_GPU}:
        return f"{gpus(len(cards))} of no named model"
    largest = max(gpu.memory_bytes for gpu in cards)
    with_memory = f" with {size(largest)}" if request.gpu_memory_bytes else ""
    return plural(len(cards), f"{', '.join(sorted(models))} GPU") + with_memory

"""Sentences for people: what is missing, with the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hopyard.domain.gang import Gang
from hopyard.domain.ids import NodeId
from hopyard.domain.resources import UNNAMED_GPU, Resources
from hopyard.scheduler.capacity import FreeNode, fits_cpu, fits_gpus, fits_memory, fits_replica, gpus_of_model, replicas_that_fit


def too_large(gang: Gang, whole: Sequence[FreeNode]) -> str:
    """Why the gang does not fit into these nodes (at least one) although nothing runs on them."""
    for role in gang.roles:
        if not any(fits_replica(role.resources, node) for node in whole):
            node = nearest(role.resources, whole)
            have = ", ".join(_has(kind, role.resources, node) for kind in missing(role.resources, node))
            who = "needs" if gang.size == 1 else "each replica needs" if len(gang.roles) == 1 else f"each `{role.name}` replica needs"
            where = f"the only node, {node.id}, has" if len(whole) == 1 else f"no node has that; the nearest, {node.id}, has"
            return f"{who} {demand(role.resources, node)} on one node; {where} {have}"
    where = whole[0].id if len(whole) == 1 else f"all {len(whole)} nodes together"
    if len(gang.roles) == 1:
        role = gang.roles[0]
        room = sum(replicas_that_fit(role.resources, node, role.replicas) for node in whole)
        return f"needs {plural(role.replicas, 'replica')} with {describe(role.resources)} each at once; {where} can hold {room}"
    return f"needs {plural(gang.size, 'replica')} at once: {_roles(gang)}; {where} cannot hold them together"


def not_free(gang: Gang, free: Sequence[FreeNode], whole: Mapping[NodeId, FreeNode]) -> str:
    """Why the gang does not fit into what is free now. `whole`: the same nodes as if nothing ran on them."""
    blocked = [role for role in gang.roles if not any(fits_replica(role.resources, node) for node in free)]
    if gang.size > 1 and not blocked:
        if len(gang.roles) > 1:
            return f"needs {plural(gang.size, 'replica')} at once ({_roles(gang)}); what is free does not hold them together"
        role = gang.roles[0]
        room = sum(replicas_that_fit(role.resources, node, role.replicas) for node in free)
        return f"needs {plural(role.replicas, 'replica')} with {describe(role.resources)} each at once; there is room for {room} now"
    request = (blocked or gang.roles)[0].resources
    able = [node for node in free if fits_replica(request, whole[node.id])]
    if not able:
        return f"needs {describe(request)}; the nodes that have that are not ready"
    node = nearest(request, able)
    have = " and ".join(_is_free(kind, request, node, whole[node.id]) for kind in missing(request, node))
    each = "" if gang.size == 1 else " for each replica"
    return f"needs {demand(request, node)}{each}; {have} on {node.id}"


def nearest(request: Resources, nodes: Sequence[FreeNode]) -> FreeNode:
    """The node that lacks the fewest kinds of resource, and of these the least, for one replica."""

    def distance(node: FreeNode) -> tuple[int, float, str]:
        lacks = missing(request, node)
        return len(lacks), sum(1 - _ratio(kind, request, node) for kind in lacks), node.id

    return min(nodes, key=distance)


def missing(request: Resources, node: FreeNode) -> list[str]:
    """Which kinds of resource the node has too little of for one replica."""
    rules = (("gpus", fits_gpus), ("cpu", fits_cpu), ("memory", fits_memory))
    return [kind for kind, fits in rules if not fits(request, node)]


def demand(request: Resources, node: FreeNode) -> str:
    """The part of the request that the node cannot give."""
    said = {"gpus": gpus(request.gpus, " or ".join(request.gpu_models)), "cpu": cpus(request.cpu_milli), "memory": f"{size(request.memory_bytes)} of memory"}
    return " and ".join(said[kind] for kind in missing(request, node)) or describe(request)


def describe(request: Resources) -> str:
    """The whole request: "2 GPUs, 4 CPUs, 8 GiB of memory"."""
    parts = [gpus(request.gpus, " or ".join(request.gpu_models))] if request.gpus else []
    parts += [cpus(request.cpu_milli)] if request.cpu_milli else []
    parts += [f"{size(request.memory_bytes)} of memory"] if request.memory_bytes else []
    return ", ".join(parts) or "nothing"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def gpus(count: int, model: str = "") -> str:
    return plural(count, f"{model} GPU" if model else "GPU")


def cpus(milli: int) -> str:
    amount = f"{milli / 1000:g}"
    return f"{amount} CPU" if amount == "1" else f"{amount} CPUs"


def size(count: int) -> str:
    """Bytes in binary units, at most one decimal."""
    amount, units = float(max(count, 0)), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.1f}".removesuffix(".0") + f" {units[0]}"


def _has(kind: str, request: Resources, node: FreeNode) -> str:
    if kind == "cpu":
        return cpus(node.cpu_milli)
    if kind == "memory":
        return f"{size(node.memory_bytes)} of memory"
    right = len(gpus_of_model(node.gpus, request.gpu_models))
    if right or not node.gpus:
        return gpus(right, " or ".join(request.gpu_models)) if right else "no GPU"
    models = {gpu.model for gpu in node.gpus}
    if models == {UNNAMED_GPU}:
        return f"{gpus(len(node.gpus))} of no named model"
    return gpus(len(node.gpus), ", ".join(sorted(models)))


def _is_free(kind: str, request: Resources, free: FreeNode, whole: FreeNode) -> str:
    if kind == "cpu":
        return f"{max(free.cpu_milli, 0) / 1000:g} of {cpus(whole.cpu_milli)} are free"
    if kind == "memory":
        return f"{size(free.memory_bytes)} of {size(whole.memory_bytes)} memory are free"
    left, all_of_it = len(gpus_of_model(free.gpus, request.gpu_models)), len(gpus_of_model(whole.gpus, request.gpu_models))
    return f"{left} of {all_of_it} {'is' if left == 1 else 'are'} free"


def _ratio(kind: str, request: Resources, node: FreeNode) -> float:
    """How much of what is asked of one kind the node has, 0 to 1."""
    if kind == "cpu":
        return max(node.cpu_milli, 0) / request.cpu_milli
    if kind == "memory":
        return max(node.memory_bytes, 0) / request.memory_bytes
    return len(gpus_of_model(node.gpus, request.gpu_models)) / request.gpus


def _roles(gang: Gang) -> str:
    return ", ".join(f"{role.replicas} `{role.name}` with {describe(role.resources)}" for role in gang.roles)

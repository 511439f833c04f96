"""What a node has left, and the rules that say whether replicas fit into it. One rule each, named by the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hopyard.domain.cluster import Node, Snapshot
from hopyard.domain.gang import Placement, Role
from hopyard.domain.ids import NodeId
from hopyard.domain.resources import Gpu, Resources


class FreeNode:
    """What is still free on one node. Mutable: a policy takes from it as it places.

    gpus: the free ones, lowest index first. A node that shrank under its runs may have less than nothing left.
    """

    __slots__ = ("cpu_milli", "gpus", "id", "memory_bytes")

    def __init__(self, id: NodeId, cpu_milli: int, memory_bytes: int, gpus: tuple[Gpu, ...]) -> None:
        self.id, self.cpu_milli, self.memory_bytes, self.gpus = id, cpu_milli, memory_bytes, gpus

    @classmethod
    def whole(cls, node: Node) -> FreeNode:
        """The node as if nothing ran on it."""
        return cls(node.id, node.cpu_milli, node.memory_bytes, tuple(sorted(node.gpus)))

    def copy(self) -> FreeNode:
        return FreeNode(self.id, self.cpu_milli, self.memory_bytes, self.gpus)

    def take(self, request: Resources) -> tuple[int, ...]:
        """Use up one replica's request; the indices of the GPUs it gets: the lowest free ones of its model."""
        self.cpu_milli -= request.cpu_milli
        self.memory_bytes -= request.memory_bytes
        if not request.gpus:
            return ()
        taken = tuple(gpu.index for gpu in gpus_of_model(self.gpus, request.gpu_models)[: request.gpus])
        self.gpus = tuple(gpu for gpu in self.gpus if gpu.index not in taken)
        return taken

    def occupy(self, request: Resources, indices: Sequence[int]) -> None:
        """Use up what a running replica holds: its request and exactly these GPUs."""
        self.cpu_milli -= request.cpu_milli
        self.memory_bytes -= request.memory_bytes
        if indices:
            held = frozenset(indices)
            self.gpus = tuple(gpu for gpu in self.gpus if gpu.index not in held)


def free_capacity(snapshot: Snapshot) -> list[FreeNode]:
    """What the ready nodes have left under all running gangs, by node id."""
    free = {node.id: FreeNode.whole(node) for node in sorted(snapshot.nodes.values(), key=lambda n: n.id) if node.open}
    for running in snapshot.running:
        occupy_all(free, running.placement)
    return list(free.values())


def occupy_all(free: Mapping[NodeId, FreeNode], placement: Placement) -> None:
    """Use up what a running gang holds; replicas on nodes that are not there are passed over."""
    for (_, role), assignment in zip(placement.gang.requests(), placement.assignments, strict=True):
        node = free.get(assignment.node)
        if node is not None:
            node.occupy(role.resources, assignment.gpus)


def gpus_of_model(gpus: Sequence[Gpu], models: Sequence[str]) -> Sequence[Gpu]:
    """Those of these models (compared without case); all of them when no model is asked for."""
    if not models:
        return gpus
    wanted = {model.casefold() for model in models}
    return [gpu for gpu in gpus if gpu.model.casefold() in wanted]


def fits_cpu(request: Resources, node: FreeNode) -> bool:
    return request.cpu_milli == 0 or request.cpu_milli <= node.cpu_milli


def fits_memory(request: Resources, node: FreeNode) -> bool:
    return request.memory_bytes == 0 or request.memory_bytes <= node.memory_bytes


def fits_gpus(request: Resources, node: FreeNode) -> bool:
    return request.gpus == 0 or (request.gpus <= len(node.gpus) and request.gpus <= len(gpus_of_model(node.gpus, request.gpu_models)))


def fits_replica(request: Resources, node: FreeNode) -> bool:
    """Whether one replica fits into what is left of the node."""
    return fits_cpu(request, node) and fits_memory(request, node) and fits_gpus(request, node)


def fits_whole(roles: Sequence[Role], node: FreeNode) -> bool:
    """Whether all replicas of all roles fit together into what is left of one node."""
    if len(roles) == 1:
        return replicas_that_fit(roles[0].resources, node, roles[0].replicas) == roles[0].replicas
    total = Resources(
        sum(r.replicas * r.resources.cpu_milli for r in roles),
        sum(r.replicas * r.resources.memory_bytes for r in roles),
        sum(r.replicas * r.resources.gpus for r in roles),
    )
    if not fits_replica(total, node):
        return False
    by_model: dict[str, int] = {}
    for role in roles:
        if len(role.resources.gpu_models) == 1:
            model = role.resources.gpu_models[0].casefold()
            by_model[model] = by_model.get(model, 0) + role.replicas * role.resources.gpus
    return all(count <= len(gpus_of_model(node.gpus, (model,))) for model, count in by_model.items())


def replicas_that_fit(request: Resources, node: FreeNode, at_most: int) -> int:
    """How many replicas with this request fit side by side into what is left of the node."""
    count = at_most
    if request.cpu_milli:
        count = min(count, node.cpu_milli // request.cpu_milli)
    if request.memory_bytes:
        count = min(count, node.memory_bytes // request.memory_bytes)
    if request.gpus:
        count = min(count, len(gpus_of_model(node.gpus, request.gpu_models)) // request.gpus)
    return max(count, 0)


def tightness(node: FreeNode) -> tuple[int, int, int, NodeId]:
    """Smallest where least is left, GPUs before CPUs before memory, so that whole nodes stay free; ends on a stable key.

    What a gang asks is the same wherever it goes, so what is left before it comes orders nodes as what is left after.
    """
    return len(node.gpus), node.cpu_milli, node.memory_bytes, node.id

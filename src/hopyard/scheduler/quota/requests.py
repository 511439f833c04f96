"""The amounts that a gang requests, by the resource names of guarantees and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hopyard.domain.amounts import gpu_milli_of, requested_amounts
from hopyard.domain.cluster import Node
from hopyard.domain.gang import Gang
from hopyard.domain.queue import GPU, GPU_OF, Amounts
from hopyard.domain.resources import WHOLE_GPU, Gpu, Resources

GpuModel = tuple[str, int]  # model in lower case, bytes of memory


@dataclass(frozen=True, slots=True)
class GpuModels:
    """The GPU models of the cluster, each with the number of nodes that have it: open nodes, and closed
    nodes."""

    open: Mapping[GpuModel, int] = field(default_factory=dict)
    closed: Mapping[GpuModel, int] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> GpuModels:
        opened, closed = Counter[GpuModel](), Counter[GpuModel]()
        for node in nodes:
            (opened if node.schedulable else closed).update(_gpu_models_of(node))
        return cls(opened, closed)

    def with_node_changed(self, before: Node, after: Node) -> GpuModels:
        """Returns the models after a node with the same GPUs was opened or closed."""
        if before.schedulable == after.schedulable:
            return self
        models = Counter(_gpu_models_of(after))
        opened, closed = Counter(self.open), Counter(self.closed)
        return (
            GpuModels(opened + models, closed - models)
            if after.schedulable
            else GpuModels(opened - models, closed + models)
        )

    @property
    def names(self) -> frozenset[str]:
        return frozenset(model for model, _ in self.open or self.closed)


def _gpu_models_of(node: Node) -> set[GpuModel]:
    return {(gpu.model.lower(), gpu.memory_bytes) for gpu in node.gpus}


def requested(gang: Gang, gpu_models: GpuModels) -> Amounts:
    """Returns `requested_amounts`, with shares by memory in full. If a role accepts one GPU model only, the
    amount of this model is included too."""
    amounts = requested_amounts(gang)
    for role in gang.roles:
        request = role.resources
        if request.gpu_memory_bytes:
            amounts[GPU] += (
                gpu_milli_upper_bound(request, gpu_models) - gpu_milli_of(request)
            ) * role.required_replicas
        if len(request.gpu_models) == 1 and (milli := gpu_milli_upper_bound(request, gpu_models)):
            name = GPU_OF + request.gpu_models[0].lower()
            amounts[name] = amounts.get(name, 0) + milli * role.required_replicas
    return amounts


def gpu_milli_upper_bound(request: Resources, gpu_models: GpuModels) -> int:
    """Returns the thousandths of GPUs of one replica. A share by memory counts as on the GPU model where it
    is the largest that fits, because limits must hold on any of them. Models of closed nodes count only if no
    other fits."""
    if not request.gpu_memory_bytes:
        return gpu_milli_of(request)
    return _largest_share(request, gpu_models.open) or _largest_share(request, gpu_models.closed) or WHOLE_GPU


def _largest_share(request: Resources, gpu_models: Iterable[GpuModel]) -> int:
    models = {model.lower() for model in request.gpu_models}
    shares = (
        request.gpu_milli_on(Gpu(0, model, memory))
        for model, memory in gpu_models
        if not models or model in models
    )
    return max((milli for milli in shares if milli <= WHOLE_GPU), default=0)

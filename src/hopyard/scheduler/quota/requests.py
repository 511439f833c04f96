"""What a gang asks for, as guarantees and limits name it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hopyard.domain.amounts import gpu_milli_of, requested_amounts
from hopyard.domain.cluster import Node
from hopyard.domain.gang import Gang
from hopyard.domain.queue import GPU, GPU_OF, Amounts
from hopyard.domain.resources import WHOLE_GPU, Gpu, Resources

GpuModel = tuple[str, int]  # of GPU: model in lower case, bytes of memory


@dataclass(frozen=True, slots=True)
class GpuModels:
    """The kinds of GPU that there are, each with how many nodes have it: open ones, and closed ones."""

    open: Mapping[GpuModel, int] = field(default_factory=dict)
    closed: Mapping[GpuModel, int] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> GpuModels:
        opened, closed = Counter[GpuModel](), Counter[GpuModel]()
        for node in nodes:
            (opened if node.schedulable else closed).update(_gpu_models_of(node))
        return cls(opened, closed)

    def with_node_changed(self, before: Node, after: Node) -> GpuModels:
        """One node with the same GPUs was opened or closed, if it was."""
        if before.schedulable == after.schedulable:
            return self
        kinds = Counter(_gpu_models_of(after))
        opened, closed = Counter(self.open), Counter(self.closed)
        return (
            GpuModels(opened + kinds, closed - kinds)
            if after.schedulable
            else GpuModels(opened - kinds, closed + kinds)
        )

    @property
    def names(self) -> frozenset[str]:
        return frozenset(model for model, _ in self.open or self.closed)


def _gpu_models_of(node: Node) -> set[GpuModel]:
    return {(gpu.model.lower(), gpu.memory_bytes) for gpu in node.gpus}


def requested(gang: Gang, gpu_models: GpuModels) -> Amounts:
    """As `asked_for`, with shares by memory in full, and where a role takes one model of GPU only, that
    too."""
    found = requested_amounts(gang)
    for role in gang.roles:
        request = role.resources
        if request.gpu_memory_bytes:
            found[GPU] += (
                gpu_milli_upper_bound(request, gpu_models) - gpu_milli_of(request)
            ) * role.required_replicas
        if len(request.gpu_models) == 1 and (milli := gpu_milli_upper_bound(request, gpu_models)):
            name = GPU_OF + request.gpu_models[0].lower()
            found[name] = found.get(name, 0) + milli * role.required_replicas
    return found


def gpu_milli_upper_bound(request: Resources, gpu_models: GpuModels) -> int:
    """Thousandths of GPUs of one replica. A share by memory counts as on the card where it is the largest
    that fits, since limits must hold wherever it lands; cards of closed nodes count only where no other
    fits."""
    if not request.gpu_memory_bytes:
        return gpu_milli_of(request)
    return _largest_share(request, gpu_models.open) or _largest_share(request, gpu_models.closed) or WHOLE_GPU


def _largest_share(request: Resources, cards: Iterable[GpuModel]) -> int:
    models = {model.lower() for model in request.gpu_models}
    able = (
        request.gpu_milli_on(Gpu(0, model, memory))
        for model, memory in cards
        if not models or model in models
    )
    return max((milli for milli in able if milli <= WHOLE_GPU), default=0)

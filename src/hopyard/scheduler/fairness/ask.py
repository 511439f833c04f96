"""What a gang asks for, as guarantees and limits name it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hopyard.domain.amounts import asked_for, gpu_milli_of
from hopyard.domain.cluster import Node
from hopyard.domain.gang import Gang
from hopyard.domain.queue import GPU, GPU_OF, Amounts
from hopyard.domain.resources import WHOLE_GPU, Gpu, Resources

Kind = tuple[str, int]  # of GPU: model in lower case, bytes of memory


@dataclass(frozen=True, slots=True)
class Cards:
    """The kinds of GPU that there are, each with how many nodes have it: open ones, and closed ones."""

    open: Mapping[Kind, int] = field(default_factory=dict)
    closed: Mapping[Kind, int] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Cards:
        opened, closed = Counter[Kind](), Counter[Kind]()
        for node in nodes:
            (opened if node.open else closed).update(_kinds(node))
        return cls(opened, closed)

    def turned(self, before: Node, after: Node) -> Cards:
        """One node with the same GPUs was opened or closed, if it was."""
        if before.open == after.open:
            return self
        kinds = Counter(_kinds(after))
        opened, closed = Counter(self.open), Counter(self.closed)
        return Cards(opened + kinds, closed - kinds) if after.open else Cards(opened - kinds, closed + kinds)

    @property
    def models(self) -> frozenset[str]:
        return frozenset(model for model, _ in self.open or self.closed)


def _kinds(node: Node) -> set[Kind]:
    return {(gpu.model.lower(), gpu.memory_bytes) for gpu in node.gpus}


def asked(gang: Gang, cards: Cards) -> Amounts:
    """As `asked_for`, with shares by memory in full, and where a role takes one model of GPU only, that
    too."""
    found = asked_for(gang)
    for role in gang.roles:
        request = role.resources
        if request.gpu_memory_bytes:
            found[GPU] += (in_full(request, cards) - gpu_milli_of(request)) * role.fewest
        if len(request.gpu_models) == 1 and (milli := in_full(request, cards)):
            name = GPU_OF + request.gpu_models[0].lower()
            found[name] = found.get(name, 0) + milli * role.fewest
    return found


def in_full(request: Resources, cards: Cards) -> int:
    """Thousandths of GPUs of one replica. A share by memory counts as on the card where it is the largest
    that fits, since limits must hold wherever it lands; cards of closed nodes count only where no other
    fits."""
    if not request.gpu_memory_bytes:
        return gpu_milli_of(request)
    return _largest(request, cards.open) or _largest(request, cards.closed) or WHOLE_GPU


def _largest(request: Resources, cards: Iterable[Kind]) -> int:
    models = {model.lower() for model in request.gpu_models}
    able = (
        request.milli_of(Gpu(0, model, memory)) for model, memory in cards if not models or model in models
    )
    return max((milli for milli in able if milli <= WHOLE_GPU), default=0)

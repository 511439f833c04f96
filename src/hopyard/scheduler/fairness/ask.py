"""What a gang asks for, as guarantees and limits name it."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.domain.amounts import asked_for, gpu_milli_of
from hopyard.domain.cluster import Node
from hopyard.domain.gang import Gang
from hopyard.domain.queue import GPU, GPU_OF, Amounts
from hopyard.domain.resources import WHOLE_GPU, Gpu, Resources

Cards = frozenset[tuple[str, int]]  # model in lower case, bytes of memory


def cards_of(nodes: Iterable[Node]) -> Cards:
    """The kinds of GPU that there are."""
    return frozenset((gpu.model.lower(), gpu.memory_bytes) for node in nodes for gpu in node.gpus)


def asked(gang: Gang, cards: Cards) -> Amounts:
    """As `asked_for`, with shares by memory in full, and where a role takes one model of GPU only, that too."""
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
    """Thousandths of GPUs of one replica. A share by memory counts as on the card where it is the largest that fits, since
    limits must hold wherever it lands."""
    if not request.gpu_memory_bytes:
        return gpu_milli_of(request)
    models = {model.lower() for model in request.gpu_models}
    able = (request.milli_of(Gpu(0, model, memory)) for model, memory in cards if not models or model in models)
    return max((milli for milli in able if milli <= WHOLE_GPU), default=WHOLE_GPU)

"""What a reservation keeps from everybody but its owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hopyard.domain.cluster import Node
from hopyard.domain.gang import Placement
from hopyard.domain.ids import NodeId
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import WHOLE_GPU, Resources
from hopyard.scheduler.placement.capacity import Capacity, Rest


def hold(view: Capacity, reservation: Reservation, used: Sequence[Placement]) -> None:
    """Use up in `view` what is reserved and not in use by the owner's own gangs, `used`."""
    if reservation.resources is None:
        view.close(reservation.nodes)
        return
    for name, pieces in zip(reservation.nodes, reservation.pieces, strict=True):
        node = view.node(name)
        if node is not None:
            view.hold_back(name, unused(node, reservation.resources, pieces, used))


def unused(node: Node, piece: Resources, pieces: int, used: Sequence[Placement]) -> Rest:
    """What of so many pieces of the node these gangs do not use. Of whole GPUs, one of which they use a part is used."""
    card = replace(piece, cpu_milli=0, memory_bytes=0, gpus=min(piece.gpus, 1), extras=())
    sums, models = _used_on(node.id, used), {model.lower() for model in piece.gpu_models}
    able = [gpu for gpu in node.gpus if not models or gpu.model.lower() in models]
    if piece.gpus:
        cards = pieces * piece.gpus - sum(sums[f"gpu {gpu.index}"] > 0 for gpu in able)
    else:
        each = max(min((piece.milli_of(gpu) for gpu in able), default=WHOLE_GPU), 1)
        cards = pieces * int(piece.shares_gpu) - sum(sums[f"gpu {gpu.index}"] for gpu in able) // each
    return Rest(
        max(piece.cpu_milli * pieces - sums["cpu"], 0),
        max(piece.memory_bytes * pieces - sums["memory"], 0),
        tuple((name, max(amount * pieces - sums[f"extra {name}"], 0)) for name, amount in piece.extras),
        card,
        max(cards, 0),
    )


def _used_on(node: NodeId, used: Sequence[Placement]) -> Counter[str]:
    """Thousandths of cores and of each GPU, bytes, and other countable things."""
    sums: Counter[str] = Counter()
    for placement in used:
        for (_, role), assignment in zip(placement.gang.requests(), placement.assignments, strict=True):
            if assignment.node == node:
                asked = role.resources
                sums.update({"cpu": asked.cpu_milli, "memory": asked.memory_bytes})
                sums.update({f"gpu {index}": assignment.gpu_milli for index in assignment.gpus})
                sums.update({f"extra {name}": amount for name, amount in asked.extras})
    return sums

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
from hopyard.scheduler.placement.capacity import Capacity


def hold(view: Capacity, reservation: Reservation, used: Sequence[Placement]) -> None:
    """Use up in `view` what is reserved and not in use by the owner's own gangs, `used`."""
    if reservation.resources is None:
        view.close(reservation.nodes)
        return
    for name, pieces in zip(reservation.nodes, reservation.pieces, strict=True):
        node = view.node(name)
        if node is not None:
            view.hold_back(name, *unused(node, reservation.resources, pieces, used))


def unused(node: Node, piece: Resources, pieces: int, used: Sequence[Placement]) -> tuple[Resources, Resources, int]:
    """What of so many pieces of the node these gangs do not use: all but GPUs; one GPU, or share of one, and how many times that."""
    card = replace(piece, cpu_milli=0, memory_bytes=0, gpus=min(piece.gpus, 1), extras=())
    sums = _used_on(node.id, used)
    extras = tuple((name, max(amount * pieces - sums[name], 0)) for name, amount in piece.extras)
    cpu_milli, memory_bytes = (max(asked * pieces - sums[kind], 0) for asked, kind in ((piece.cpu_milli, "cpu"), (piece.memory_bytes, "memory")))
    rest = Resources(cpu_milli, memory_bytes, extras=extras)
    wanted = pieces * (piece.gpus or int(piece.shares_gpu))
    each = max(min((card.milli_of(gpu) for gpu in node.gpus), default=WHOLE_GPU), 1)
    return rest, card, max(-(-(wanted * each - sums["gpu"]) // each), 0)


def _used_on(node: NodeId, used: Sequence[Placement]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for placement in used:
        for (_, role), assignment in zip(placement.gang.requests(), placement.assignments, strict=True):
            if assignment.node == node:
                asked = role.resources
                gpu_milli = len(assignment.gpus) * assignment.gpu_milli
                sums.update({"cpu": asked.cpu_milli, "memory": asked.memory_bytes, "gpu": gpu_milli, **dict(asked.extras)})
    return sums

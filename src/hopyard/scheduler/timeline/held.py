"""What a reservation keeps from everybody but its owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
    for node, pieces in zip(reservation.nodes, reservation.pieces, strict=True):
        view.hold_back(node, reservation.resources, pieces - pieces_used(node, reservation.resources, used))


def pieces_used(node: NodeId, piece: Resources, used: Sequence[Placement]) -> int:
    """How many whole pieces these gangs use on the node."""
    sums: Counter[str] = Counter()
    for placement in used:
        for (_, role), assignment in zip(placement.gang.requests(), placement.assignments, strict=True):
            if assignment.node == node:
                sums.update(_amounts(role.resources, len(assignment.gpus) * assignment.gpu_milli))
    asked = _amounts(piece, piece.gpus * WHOLE_GPU or piece.gpu_milli)
    return min((sums[name] // amount for name, amount in asked.items() if amount), default=0)


def _amounts(request: Resources, gpu_milli: int) -> dict[str, int]:
    return {"cpu": request.cpu_milli, "memory": request.memory_bytes, "gpu": gpu_milli, **dict(request.extras)}

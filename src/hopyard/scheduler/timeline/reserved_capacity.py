"""Capacity that reservations withhold from all gangs except those of their owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hopyard.domain.cluster import Node
from hopyard.domain.gang import Placement
from hopyard.domain.ids import NodeId
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.placement.capacity import Capacity, NodeHoldback
from hopyard.scheduler.timeline.reservation_windows import may_use


@dataclass(frozen=True, slots=True)
class GangNodeUsage:
    """What one gang uses of a node, and which reservations are for it. amounts: thousandths of cores and of
    each GPU, bytes, and extra resources, less what was already counted as the use of a reservation."""

    reservation_ids: frozenset[str]
    amounts: Counter[str]


def withhold_reserved(
    capacity: Capacity,
    reservations: Sequence[Reservation],
    placements: Sequence[Placement],
    queues: QueueTree,
) -> None:
    """Allocates in `capacity` all reserved resources that running gangs of the owners do not use yet."""
    capacity.close_nodes(
        node for reservation in reservations if reservation.resources is None for node in reservation.nodes
    )
    partial_reservations = [reservation for reservation in reservations if reservation.resources is not None]
    for name in dict.fromkeys(node for reservation in partial_reservations for node in reservation.nodes):
        node = capacity.get_node(name)
        if node is not None:
            for holdback in reserved_on(node, partial_reservations, placements, queues):
                capacity.withhold(name, holdback)


def reserved_on(
    node: Node, reservations: Sequence[Reservation], placements: Sequence[Placement], queues: QueueTree
) -> list[NodeHoldback]:
    """Returns what each reservation withholds of the node, in this order: its pieces without what its owner's
    gangs use. Reservations without pieces on the node are left out. The usage of a gang that may use several
    reservations is counted once, for the first of them. Gangs that may use the fewest reservations are
    counted first."""
    on_node = [
        reservation
        for reservation in reservations
        if reservation.resources is not None and node.id in reservation.nodes
    ]
    usages = []
    for placement in placements:
        usable = frozenset(
            reservation.id for reservation in on_node if may_use(placement.gang, reservation, queues)
        )
        if usable and (amounts := _usage_on(node.id, placement)):
            usages.append(GangNodeUsage(usable, amounts))
    usages.sort(key=lambda usage: len(usage.reservation_ids))
    return [
        _unused_reservation(
            node, reservation, [usage.amounts for usage in usages if reservation.id in usage.reservation_ids]
        )
        for reservation in on_node
    ]


def _unused_reservation(node: Node, reservation: Reservation, used: Sequence[Counter[str]]) -> NodeHoldback:
    """Returns the unused part of the reserved pieces, and subtracts the used part from `used`. A whole GPU
    counts as used if any part of it is used."""
    piece, pieces = reservation.resources, reservation.pieces[reservation.nodes.index(node.id)]
    assert piece is not None
    per_piece = {
        "cpu": piece.cpu_milli,
        "memory": piece.memory_bytes,
        **{f"extra {name}": amount for name, amount in piece.extras},
    }
    taken = Counter({name: _take_used(used, name, amount * pieces) for name, amount in per_piece.items()})
    models = {model.lower() for model in piece.gpu_models}
    suitable_gpus = [gpu for gpu in node.gpus if not models or gpu.model.lower() in models]
    milli = {
        name: sum(amounts[name] for amounts in used) for name in (f"gpu {gpu.index}" for gpu in suitable_gpus)
    }
    if piece.gpus:
        used_gpus = [name for name, amount in milli.items() if amount][: pieces * piece.gpus]
        unused_gpus = pieces * piece.gpus - len(used_gpus)
        for name in used_gpus:
            _take_used(used, name, milli[name])
    else:
        gpu_share = max(min((piece.gpu_milli_on(gpu) for gpu in suitable_gpus), default=WHOLE_GPU), 1)
        shares = min(sum(milli.values()) // gpu_share, pieces * int(piece.is_gpu_share))
        unused_gpus, remaining = pieces * int(piece.is_gpu_share) - shares, shares * gpu_share
        for name in milli:
            remaining -= _take_used(used, name, remaining)
    return NodeHoldback(
        piece.cpu_milli * pieces - taken["cpu"],
        piece.memory_bytes * pieces - taken["memory"],
        tuple((name, amount * pieces - taken[f"extra {name}"]) for name, amount in piece.extras),
        replace(piece, cpu_milli=0, memory_bytes=0, gpus=min(piece.gpus, 1), extras=()),
        unused_gpus,
    )


def _take_used(used: Sequence[Counter[str]], name: str, amount: int) -> int:
    """Takes up to `amount` of the resource from the usages, and returns what was taken."""
    remaining = amount
    for amounts in used:
        taken = min(amounts[name], remaining)
        amounts[name] -= taken
        remaining -= taken
    return amount - remaining


def _usage_on(node: NodeId, placement: Placement) -> Counter[str]:
    amounts: Counter[str] = Counter()
    for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=True):
        if assignment.node == node:
            request = role.resources
            amounts.update({"cpu": request.cpu_milli, "memory": request.memory_bytes})
            amounts.update({f"gpu {index}": assignment.gpu_milli for index in assignment.gpus})
            amounts.update({f"extra {name}": amount for name, amount in request.extras})
    return amounts

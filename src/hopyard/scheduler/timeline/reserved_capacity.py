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
    each GPU, bytes, and other countable things, less what was counted as the use of one of these."""

    reservation_ids: frozenset[str]
    amounts: Counter[str]


def withhold_reserved(
    capacity: Capacity,
    reservations: Sequence[Reservation],
    placements: Sequence[Placement],
    queues: QueueTree,
) -> None:
    """Allocates in `capacity` all reserved resources that running gangs of the owners do not use yet."""
    capacity.close_nodes(node for one in reservations if one.resources is None for node in one.nodes)
    pieces = [one for one in reservations if one.resources is not None]
    for name in dict.fromkeys(node for one in pieces for node in one.nodes):
        node = capacity.get_node(name)
        if node is not None:
            for rest in reserved_on(node, pieces, placements, queues):
                capacity.withhold(name, rest)


def reserved_on(
    node: Node, reservations: Sequence[Reservation], placements: Sequence[Placement], queues: QueueTree
) -> list[NodeHoldback]:
    """What each of these keeps of the node, in this order: its pieces without what its owner's gangs use.
    What a gang uses is counted once, where it may use several: first come, first served, but those first that
    may use the fewest. Nothing of those that have no pieces there."""
    here = [one for one in reservations if one.resources is not None and node.id in one.nodes]
    uses = []
    for placement in placements:
        may = frozenset(one.id for one in here if may_use(placement.gang, one, queues))
        if may and (sums := _usage_on(node.id, placement)):
            uses.append(GangNodeUsage(may, sums))
    uses.sort(key=lambda use: len(use.reservation_ids))
    return [
        _unused_reservation(node, one, [use.amounts for use in uses if one.id in use.reservation_ids])
        for one in here
    ]


def _unused_reservation(node: Node, reservation: Reservation, used: Sequence[Counter[str]]) -> NodeHoldback:
    """What of its pieces these do not use; what they do is taken from them.
    Of whole GPUs, one of which they use a part is used."""
    piece, pieces = reservation.resources, reservation.pieces[reservation.nodes.index(node.id)]
    assert piece is not None
    wanted = {
        "cpu": piece.cpu_milli,
        "memory": piece.memory_bytes,
        **{f"extra {name}": amount for name, amount in piece.extras},
    }
    taken = Counter({name: _take_used(used, name, amount * pieces) for name, amount in wanted.items()})
    models = {model.lower() for model in piece.gpu_models}
    able = [gpu for gpu in node.gpus if not models or gpu.model.lower() in models]
    milli = {name: sum(sums[name] for sums in used) for name in (f"gpu {gpu.index}" for gpu in able)}
    if piece.gpus:
        touched = [name for name, amount in milli.items() if amount][: pieces * piece.gpus]
        cards = pieces * piece.gpus - len(touched)
        for name in touched:
            _take_used(used, name, milli[name])
    else:
        each = max(min((piece.gpu_milli_on(gpu) for gpu in able), default=WHOLE_GPU), 1)
        shares = min(sum(milli.values()) // each, pieces * int(piece.is_gpu_share))
        cards, left = pieces * int(piece.is_gpu_share) - shares, shares * each
        for name in milli:
            left -= _take_used(used, name, left)
    return NodeHoldback(
        piece.cpu_milli * pieces - taken["cpu"],
        piece.memory_bytes * pieces - taken["memory"],
        tuple((name, amount * pieces - taken[f"extra {name}"]) for name, amount in piece.extras),
        replace(piece, cpu_milli=0, memory_bytes=0, gpus=min(piece.gpus, 1), extras=()),
        cards,
    )


def _take_used(used: Sequence[Counter[str]], name: str, amount: int) -> int:
    """Of this, as much as there is, up to the amount; what was taken."""
    left = amount
    for sums in used:
        part = min(sums[name], left)
        sums[name] -= part
        left -= part
    return amount - left


def _usage_on(node: NodeId, placement: Placement) -> Counter[str]:
    sums: Counter[str] = Counter()
    for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=True):
        if assignment.node == node:
            asked = role.resources
            sums.update({"cpu": asked.cpu_milli, "memory": asked.memory_bytes})
            sums.update({f"gpu {index}": assignment.gpu_milli for index in assignment.gpus})
            sums.update({f"extra {name}": amount for name, amount in asked.extras})
    return sums

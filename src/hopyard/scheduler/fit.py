"""Where a gang goes: whole or not at all, on one node where that is possible, on as few as possible otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from hopyard.domain.cluster import Node
from hopyard.domain.gang import Assignment, Gang, Role
from hopyard.scheduler.capacity import FreeNode, fits_whole, replicas_that_fit, tightness
from hopyard.scheduler.reasons import too_large


def place(gang: Gang, free: Sequence[FreeNode]) -> tuple[Assignment, ...] | None:
    """Take a place for every replica out of `free`, or nothing; assignments in rank order.

    Exact for a gang that fits one node and for a gang of one role. For several roles over several nodes it is a
    heuristic (packing in several dimensions is NP-hard): the most demanding role first, in a few orders.
    """
    best: FreeNode | None = None
    for node in free:
        if fits_whole(gang.roles, node) and (best is None or tightness(node) < tightness(best)):
            best = node
    if best is not None:
        return _place_on(gang, best)
    return _place_spread(gang, free) if gang.size > 1 else None


def _place_on(gang: Gang, node: FreeNode) -> tuple[Assignment, ...]:
    """All replicas on one node. Those that want a certain model choose before those that take any."""
    if len(gang.roles) == 1:
        request = gang.roles[0].resources
        return tuple(Assignment(rank, node.id, node.take(request)) for rank in range(gang.size))
    picky_first = sorted(gang.requests(), key=lambda pair: (not pair[1].resources.gpu_models, pair[0]))
    placed = [Assignment(rank, node.id, node.take(role.resources)) for rank, role in picky_first]
    return tuple(sorted(placed, key=lambda a: a.rank))


def _place_spread(gang: Gang, free: Sequence[FreeNode]) -> tuple[Assignment, ...] | None:
    """Over several nodes: role by role, in the first order that works."""
    first_rank = list(accumulate((role.replicas for role in gang.roles), initial=0))
    for order in _role_orders(gang.roles):
        scratch = [node.copy() for node in free]
        placed: list[Assignment] = []
        for index in order:
            more = _spread_role(gang.roles[index], first_rank[index], scratch, used={a.node for a in placed})
            if more is None:
                break
            placed += more
        else:
            for node, after in zip(free, scratch, strict=True):
                node.cpu_milli, node.memory_bytes, node.gpus = after.cpu_milli, after.memory_bytes, after.gpus
            return tuple(sorted(placed, key=lambda a: a.rank))
    return None


def _role_orders(roles: Sequence[Role]) -> list[tuple[int, ...]]:
    """Orders to try: a role that wants a certain model always before one that takes any, then by each resource."""
    orders = []
    for weight in ("gpus", "memory_bytes", "cpu_milli"):
        key = [(not r.resources.gpu_models, -getattr(r.resources, weight), -r.resources.gpus, -r.resources.cpu_milli, i) for i, r in enumerate(roles)]
        orders.append(tuple(sorted(range(len(roles)), key=key.__getitem__)))
    return list(dict.fromkeys(orders))


def _spread_role(role: Role, first_rank: int, free: Sequence[FreeNode], *, used: set[str]) -> list[Assignment] | None:
    """Fill the roomiest nodes, then end on the tightest that takes the rest, so that the fewest nodes are touched."""
    placed: list[Assignment] = []
    while (rest := role.replicas - len(placed)) > 0:
        room = [(replicas_that_fit(role.resources, node, rest), node) for node in free]
        most = max((count for count, _ in room), default=0)
        if most == 0:
            return None
        node = min((node for count, node in room if count == most), key=lambda n: (n.id not in used, tightness(n)))
        used.add(node.id)
        placed += [Assignment(first_rank + len(placed) + i, node.id, node.take(role.resources)) for i in range(most)]
    return placed


def never_fits(gang: Gang, nodes: Iterable[Node]) -> str | None:
    """Why the gang is larger than all these nodes even if nothing ran on them, naming what is missing and the nearest
    node; None where it fits. Nodes that are not ready count: they may come back. Without any node nothing is refused."""
    return never_fits_whole(gang, [FreeNode.whole(node) for node in sorted(nodes, key=lambda n: n.id)])


def never_fits_whole(gang: Gang, whole: Sequence[FreeNode]) -> str | None:
    """`never_fits` for nodes that are at hand as empty ones, by node id."""
    return too_large(gang, whole) if whole and not _fits_empty(gang, whole) else None


def _fits_empty(gang: Gang, whole: Sequence[FreeNode]) -> bool:
    if len(gang.roles) > 1:
        return place(gang, [node.copy() for node in whole]) is not None
    request, rest = gang.roles[0].resources, gang.size
    for node in whole:
        rest -= replicas_that_fit(request, node, rest)
        if rest <= 0:
            return True
    return False

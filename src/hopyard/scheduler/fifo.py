"""Priority, then first come. Simple, and fair in the strictest sense: nobody overtakes who waits for the same nodes."""

from __future__ import annotations

from collections.abc import Sequence

from hopyard.domain.cluster import Hold, HoldReason, Plan, Snapshot
from hopyard.domain.gang import Gang, Placement, Role
from hopyard.scheduler.capacity import FreeNode, fits_replica, free_capacity
from hopyard.scheduler.fit import never_fits_whole, place
from hopyard.scheduler.reasons import not_free, plural

Roles = tuple[Role, ...]


def priority_fifo(snapshot: Snapshot) -> Plan:
    """Place gangs by priority (larger first), then time of submission, then id.

    A gang that waits claims every node that could ever hold one of its replicas, and those behind it keep off these nodes
    (there is no backfill), so no later one delays it. A gang that is larger than all nodes claims none: it delays nobody,
    and its position is after all that can start some day.
    """
    queue = sorted(snapshot.pending, key=lambda gang: (-gang.priority, gang.submitted_at, gang.id))
    nodes = _Nodes(snapshot)
    placed: list[Placement] = []
    waiting: list[tuple[Gang, HoldReason, str]] = []
    hopeless: list[tuple[Gang, HoldReason, str]] = []
    for gang in queue:
        too_large = nodes.never_fits(gang)
        if too_large is not None:
            hopeless.append((gang, HoldReason.NEVER_FITS, too_large))
        elif not nodes.free:
            waiting.append((gang, HoldReason.NO_NODES, _no_nodes(snapshot)))
        elif (placement := nodes.place(gang)) is not None:
            placed.append(placement)
        else:
            waiting.append((gang, *nodes.claim(gang, ahead=len(waiting))))
    hold = [Hold(gang.id, reason, detail, position) for position, (gang, reason, detail) in enumerate(waiting + hopeless, start=1)]
    return Plan(snapshot.version, tuple(placed), tuple(hold))


def _no_nodes(snapshot: Snapshot) -> str:
    if not snapshot.nodes:
        return "no node has joined yet"
    return f"none of {plural(len(snapshot.nodes), 'node')} is ready" if len(snapshot.nodes) > 1 else f"the only node, {min(snapshot.nodes)}, is not ready"


class _Nodes:
    """The ready nodes as one plan sees them: what is left, and who waits for which. Sets of nodes are bit masks over
    `free`, and what depends only on a gang's shape is computed once per shape, so a long queue costs little per gang."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.free = free_capacity(snapshot)
        self._whole = {node.id: FreeNode.whole(node) for node in sorted(snapshot.nodes.values(), key=lambda n: n.id)}
        self._kinds = _by_kind([self._whole[node.id] for node in self.free])
        self._able: dict[Roles, int] = {}
        self._too_large: dict[Roles, str | None] = {}
        self._claimed = 0
        self._claims: list[tuple[int, str]] = []  # disjoint: the nodes that a waiting gang was first to claim, and why it waits

    def never_fits(self, gang: Gang) -> str | None:
        if gang.roles not in self._too_large:
            alone = gang.size == 1 and self._nodes_able(gang.roles) != 0
            self._too_large[gang.roles] = None if alone else never_fits_whole(gang, list(self._whole.values()))
        return self._too_large[gang.roles]

    def place(self, gang: Gang) -> Placement | None:
        """On nodes that nobody ahead waits for; None where they do not suffice."""
        open_to_it = self._nodes_able(gang.roles) & ~self._claimed
        if not open_to_it:
            return None
        assignments = place(gang, _chosen(self.free, open_to_it))
        return None if assignments is None else Placement(gang, assignments)

    def claim(self, gang: Gang, *, ahead: int) -> tuple[HoldReason, str]:
        """Keep those behind off the nodes that this gang waits for; why it waits."""
        able = self._nodes_able(gang.roles)
        if able & self._claimed:
            reason = HoldReason.BEHIND
            first = next(why for nodes, why in self._claims if nodes & able)
            detail = f"{plural(ahead, 'run')} ahead of it; one that waits for the same nodes {first}"
        else:
            reason, first = HoldReason.NO_CAPACITY, not_free(gang, _chosen(self.free, able), self._whole)
            detail = first
        if able & ~self._claimed:
            self._claims.append((able & ~self._claimed, first))
            self._claimed |= able
        return reason, detail

    def _nodes_able(self, roles: Roles) -> int:
        """The ready nodes that could hold at least one replica if nothing ran on them."""
        if roles not in self._able:
            self._able[roles] = sum(mask for kind, mask in self._kinds if any(fits_replica(role.resources, kind) for role in roles))
        return self._able[roles]


def _by_kind(nodes: Sequence[FreeNode]) -> list[tuple[FreeNode, int]]:
    """One example of each kind of node, with the mask of the nodes of its kind."""
    kinds: dict[object, tuple[FreeNode, int]] = {}
    for bit, node in enumerate(nodes):
        key = (node.cpu_milli, node.memory_bytes, tuple(sorted(gpu.model.casefold() for gpu in node.gpus)))
        example, mask = kinds.get(key, (node, 0))
        kinds[key] = (example, mask | 1 << bit)
    return list(kinds.values())


def _chosen(nodes: Sequence[FreeNode], mask: int) -> Sequence[FreeNode]:
    return nodes if mask == (1 << len(nodes)) - 1 else [node for bit, node in enumerate(nodes) if mask >> bit & 1]

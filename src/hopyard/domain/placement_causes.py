"""Causes for which a gang does not fit: the request, the nearest node with its shortfall, and where the gang
would fit.

Each names the smallest size of the gang. request: of one replica. where: the nodes that it may use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hopyard.domain.gang import NodeSelector
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import NodeId, PoolName
from hopyard.domain.resources import Gpu, Resources


@dataclass(frozen=True, slots=True)
class CpuShortfall:
    """A node has too few cores for one replica, in thousandths."""

    requested: int
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class MemoryShortfall:
    """A node has too little memory for one replica, in bytes."""

    requested: int
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class ExtraShortfall:
    """A node has too little of another countable resource for one replica."""

    name: str
    requested: int
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class GpuShortfall:
    """A node has too few GPUs for one replica. usable: how many of its GPUs the request allows; free: how
    many of these have enough left; largest_free_milli: the most that one of them has left."""

    request: Resources
    node_gpus: tuple[Gpu, ...]
    usable: int
    free: int
    largest_free_milli: int


Shortfall = CpuShortfall | MemoryShortfall | ExtraShortfall | GpuShortfall


@dataclass(frozen=True, slots=True)
class ClosedNode:
    """A node on which nothing may start, and its `Node.unschedulable_state`."""

    id: NodeId
    state: str


@dataclass(frozen=True, slots=True)
class MissingTopologyLabel:
    """No node has the label `level`."""

    replicas: int
    level: str


@dataclass(frozen=True, slots=True)
class DomainSizeShortfall:
    """All replicas must be in one domain of the level; none has room for more than `largest_room`."""

    replicas: int
    level: str
    largest_room: int


@dataclass(frozen=True, slots=True)
class DomainCountShortfall:
    """Each slice must be in a domain of its own; `available` domains have room for one."""

    slices: int
    slice_size: int
    level: str
    available: int


@dataclass(frozen=True, slots=True)
class SliceCountShortfall:
    """No slice may be split over two domains; there is room for `available` slices."""

    slices: int
    slice_size: int
    level: str
    available: int


@dataclass(frozen=True, slots=True)
class TopologyRuleConflict:
    """Each topology rule alone can be met, but not all of them together."""

    replicas: int


TopologyShortfall = (
    MissingTopologyLabel
    | DomainSizeShortfall
    | DomainCountShortfall
    | SliceCountShortfall
    | TopologyRuleConflict
)


@dataclass(frozen=True, slots=True)
class RoleDemand:
    """The replicas of one role, and the request of each."""

    role: str
    replicas: int
    request: Resources


# ---------------------------------------------------------------------------------------- what is free now


@dataclass(frozen=True, slots=True)
class NoSchedulableNode:
    """Nothing may start on any node. closed: the only node, or the first one that is out of service. ready:
    whether all nodes are ready, and so cordoned."""

    reason: ClassVar[HoldReason] = HoldReason.NO_NODES
    node_count: int
    closed: ClosedNode | None = None
    ready: bool = False


@dataclass(frozen=True, slots=True)
class NoFreeNode:
    """No node has room for one replica now. node: the capable node that lacks least. shortfalls: empty if the
    queue may not use its GPUs. role: empty if the gang has a single role."""

    reason: ClassVar[HoldReason] = HoldReason.NO_CAPACITY
    request: Resources
    where: NodeSelector
    gang_size: int
    role: str
    node: NodeId
    shortfalls: tuple[Shortfall, ...]


@dataclass(frozen=True, slots=True)
class FeasibleNodesClosed:
    """All nodes that are large enough are closed. out_of_service: the first one that is; None if none is.
    ready: whether all closed nodes are ready, and so cordoned."""

    reason: ClassVar[HoldReason] = HoldReason.NO_CAPACITY
    request: Resources
    where: NodeSelector
    ready: bool
    out_of_service: ClosedNode | None


@dataclass(frozen=True, slots=True)
class FreeReplicaShortfall:
    """There is room for `available` replicas only."""

    reason: ClassVar[HoldReason] = HoldReason.NO_CAPACITY
    replicas: int
    request: Resources
    where: NodeSelector
    available: int


@dataclass(frozen=True, slots=True)
class FreeTopologyShortfall:
    """There is room, but not as the topology rule demands."""

    reason: ClassVar[HoldReason] = HoldReason.TOPOLOGY
    shortfall: TopologyShortfall


@dataclass(frozen=True, slots=True)
class FreeRoleShortfall:
    """Each role fits alone, but not all of them together."""

    reason: ClassVar[HoldReason] = HoldReason.NO_CAPACITY
    roles: tuple[RoleDemand, ...]


@dataclass(frozen=True, slots=True)
class FreeEngineShortfall:
    """The nodes of several engines together have room, those of no single engine do."""

    reason: ClassVar[HoldReason] = HoldReason.NO_CAPACITY
    replicas: int
    request: Resources
    where: NodeSelector


NoCapacityCause = (
    NoSchedulableNode
    | NoFreeNode
    | FeasibleNodesClosed
    | FreeReplicaShortfall
    | FreeTopologyShortfall
    | FreeRoleShortfall
    | FreeEngineShortfall
)

# ------------------------------------------------------------------------------ what the empty cluster holds


@dataclass(frozen=True, slots=True)
class AlternativePlacement:
    """One replica would fit in this pool, or without the labels on this node; the other field is None."""

    pool: PoolName | None = None
    node: NodeId | None = None


@dataclass(frozen=True, slots=True)
class NoMatchingNode:
    """No node matches `where`. role: empty if the gang has a single role."""

    reason: ClassVar[HoldReason] = HoldReason.NEVER_FITS
    where: NodeSelector
    gang_size: int
    role: str
    elsewhere: AlternativePlacement | None


@dataclass(frozen=True, slots=True)
class NodeSizeShortfall:
    """No node is large enough for one replica. node: the node that lacks least. pool: its pool; None if there
    is one pool only. role: empty if the gang has a single role."""

    reason: ClassVar[HoldReason] = HoldReason.NEVER_FITS
    request: Resources
    where: NodeSelector
    gang_size: int
    role: str
    node_count: int
    node: NodeId
    pool: PoolName | None
    shortfalls: tuple[Shortfall, ...]
    elsewhere: AlternativePlacement | None


@dataclass(frozen=True, slots=True)
class TotalReplicaShortfall:
    """All matching nodes together can hold `available` replicas only. node: set if it is the only one."""

    reason: ClassVar[HoldReason] = HoldReason.NEVER_FITS
    replicas: int
    request: Resources
    where: NodeSelector
    node_count: int
    node: NodeId | None
    available: int


@dataclass(frozen=True, slots=True)
class TotalTopologyShortfall:
    """The nodes are large enough, but not as the topology rule demands."""

    reason: ClassVar[HoldReason] = HoldReason.NEVER_FITS
    shortfall: TopologyShortfall


@dataclass(frozen=True, slots=True)
class TotalRoleShortfall:
    """The matching nodes cannot hold all roles together. node: set if it is the only one. The missing amounts
    are those of all schedulable nodes, 0 if only the distribution is the problem."""

    reason: ClassVar[HoldReason] = HoldReason.NEVER_FITS
    roles: tuple[RoleDemand, ...]
    node_count: int
    node: NodeId | None
    missing_cpu_milli: int
    missing_memory_bytes: int
    missing_gpu_milli: int


@dataclass(frozen=True, slots=True)
class TotalEngineShortfall:
    """The nodes of several engines together are large enough, those of no single engine are."""

    reason: ClassVar[HoldReason] = HoldReason.NEVER_FITS
    replicas: int
    request: Resources
    where: NodeSelector


NeverFitsCause = (
    NoMatchingNode
    | NodeSizeShortfall
    | TotalReplicaShortfall
    | TotalTopologyShortfall
    | TotalRoleShortfall
    | TotalEngineShortfall
)

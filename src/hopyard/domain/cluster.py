"""What a policy sees (Snapshot), what it wants (Plan), and what an engine saw (Observation)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from hopyard.domain.attempt import AttemptStatus
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import DEFAULT_POOL, GangId, NodeId, PoolName, Version
from hopyard.domain.resources import Gpu


@dataclass(frozen=True, slots=True)
class Node:
    """A machine: what of it may be given to runs, in total (not what is free)."""

    id: NodeId
    engine: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    pool: PoolName = DEFAULT_POOL
    ready: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent, immutable view of the cluster. The only input of a policy.

    pending: gangs that wait. running: gangs that hold resources (starting, running, or being stopped).
    """

    version: Version
    now: datetime
    nodes: Mapping[NodeId, Node]
    pending: tuple[Gang, ...] = ()
    running: tuple[Placement, ...] = ()


class HoldReason(StrEnum):
    NO_CAPACITY = "no-capacity"  # fits the cluster, not what is free now
    BEHIND = "behind"  # would fit, but a gang ahead of it waits for the same resources
    NEVER_FITS = "never-fits"  # larger than any node (set) there is
    NO_NODES = "no-nodes"  # no node is ready


@dataclass(frozen=True, slots=True)
class Hold:
    """A gang that is not placed. `position` counts from 1 in the order of the queue; `detail` is a sentence for people."""

    gang: GangId
    reason: HoldReason
    detail: str
    position: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy wants: every pending gang exactly once, in `place` or in `hold`. It does nothing by itself."""

    based_on: Version
    place: tuple[Placement, ...] = ()
    hold: tuple[Hold, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What of a plan was committed. `rejected` says per gang why it no longer fitted."""

    applied: tuple[GangId, ...]
    rejected: Mapping[GangId, str]
    version: Version


@dataclass(frozen=True, slots=True)
class Observation:
    """What an engine sees now: all its nodes and all attempts it still knows. Never a diff."""

    nodes: tuple[Node, ...]
    attempts: tuple[AttemptStatus, ...] = ()

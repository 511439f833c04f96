"""Causes for which a promise cannot be kept: their kind, and typed values with their numbers and ids.
run: the gang that comes first, or that runs longer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from hopyard.domain.ids import GangId, NodeId, QueueName


class BreachCause(StrEnum):
    NODE_LOST = "node-lost"  # or cordoned, or its capacity shrank
    # granted after the promise, or used by its owner; or the gang is now expected to overlap it
    RESERVATION = "reservation"
    OVERRUN = "overrun"  # a run takes longer than expected, or the gang itself will
    PRIORITY = "priority"  # a gang of higher priority arrived in its queue
    GUARANTEE = "guarantee"  # a gang within its queue's guarantee arrived, and this one borrows
    SHARE = "share"  # a gang with less usage of its queue or user arrived
    PROMISE = "promise"  # a gang that was promised the same resources starts later
    QUOTA = "quota"  # the tree of queues changed, or its queue's share went to a queue with a higher claim


@dataclass(frozen=True, slots=True)
class NodeUnavailable:
    """state: `Node.unschedulable_state`; empty if the node was lost."""

    cause: ClassVar[BreachCause] = BreachCause.NODE_LOST
    node: NodeId
    state: str


@dataclass(frozen=True, slots=True)
class NodeCapacityReduced:
    """The nodes have less capacity than before."""

    cause: ClassVar[BreachCause] = BreachCause.NODE_LOST
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class ReservationGranted:
    """The reservation was granted after the promise."""

    cause: ClassVar[BreachCause] = BreachCause.RESERVATION
    reservation: str


@dataclass(frozen=True, slots=True)
class ActiveReservation:
    """The reservation has not ended at the promised start."""

    cause: ClassVar[BreachCause] = BreachCause.RESERVATION
    reservation: str


@dataclass(frozen=True, slots=True)
class ReservationConflict:
    """The reservation starts before the new expected end of the gang."""

    cause: ClassVar[BreachCause] = BreachCause.RESERVATION
    reservation: str


@dataclass(frozen=True, slots=True)
class ReservationUsage:
    """A gang uses its own reservation, and so delays a gang that was promised the nodes after it."""

    cause: ClassVar[BreachCause] = BreachCause.RESERVATION
    run: GangId
    reservation: str


@dataclass(frozen=True, slots=True)
class QuotaReduced:
    """The queue can use less quota at that time than expected."""

    cause: ClassVar[BreachCause] = BreachCause.QUOTA


@dataclass(frozen=True, slots=True)
class RunOverrun:
    """A run takes longer than expected."""

    cause: ClassVar[BreachCause] = BreachCause.OVERRUN
    run: GangId


@dataclass(frozen=True, slots=True)
class RunEstimateUpdate:
    """A run is now expected to take longer."""

    cause: ClassVar[BreachCause] = BreachCause.OVERRUN
    run: GangId


@dataclass(frozen=True, slots=True)
class GangEstimateUpdate:
    """The gang itself is now expected to take longer."""

    cause: ClassVar[BreachCause] = BreachCause.OVERRUN


@dataclass(frozen=True, slots=True)
class PriorityPrecedence:
    """A gang of the same queue has the higher priority."""

    cause: ClassVar[BreachCause] = BreachCause.PRIORITY
    run: GangId
    priority: int
    own_priority: int


@dataclass(frozen=True, slots=True)
class ServicePrecedence:
    """A gang of the same queue, which uses time slicing, has received much less service."""

    cause: ClassVar[BreachCause] = BreachCause.SHARE
    run: GangId
    queue: QueueName


@dataclass(frozen=True, slots=True)
class UserSharePrecedence:
    """The user of another gang has used less of the queue."""

    cause: ClassVar[BreachCause] = BreachCause.SHARE
    run: GangId
    user: str
    own_user: str
    queue: QueueName


@dataclass(frozen=True, slots=True)
class QueueSharePrecedence:
    """The queue of another gang, or its ancestor, uses less of its share."""

    cause: ClassVar[BreachCause] = BreachCause.SHARE
    run: GangId
    queue: QueueName
    own_queue: QueueName


@dataclass(frozen=True, slots=True)
class GuaranteePrecedence:
    """Another gang is within the guarantee of its queue, and this one would borrow."""

    cause: ClassVar[BreachCause] = BreachCause.GUARANTEE
    run: GangId
    queue: QueueName
    own_queue: QueueName


@dataclass(frozen=True, slots=True)
class PromisePrecedence:
    """Another gang started there, or was promised a start there, and will run there longer."""

    cause: ClassVar[BreachCause] = BreachCause.PROMISE
    run: GangId
    started: bool


RootBreachDetail = (
    NodeUnavailable
    | NodeCapacityReduced
    | ReservationGranted
    | ActiveReservation
    | ReservationConflict
    | ReservationUsage
    | QuotaReduced
    | RunOverrun
    | RunEstimateUpdate
    | GangEstimateUpdate
    | PriorityPrecedence
    | ServicePrecedence
    | UserSharePrecedence
    | QueueSharePrecedence
    | GuaranteePrecedence
    | PromisePrecedence
)


@dataclass(frozen=True, slots=True)
class PropagatedDelay:
    """The gang waits for another promised gang, which is late. root: the cause of that delay."""

    run: GangId
    root: RootBreachDetail

    @property
    def cause(self) -> BreachCause:
        return self.root.cause


BreachDetail = RootBreachDetail | PropagatedDelay

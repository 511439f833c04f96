"""Causes for which a gang waits: typed values with their numbers and ids. `scheduler.explain` formats them as
sentences."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, QueueName
from hopyard.domain.placement_causes import NeverFitsCause, NoCapacityCause
from hopyard.domain.quota_causes import QuotaCause


@dataclass(frozen=True, slots=True)
class GpuModelsClosed:
    """Only GPUs of these models are free, and the queue is at its limit for them."""

    reason: ClassVar[HoldReason] = HoldReason.QUOTA
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuotaPromised:
    """The queue would refuse the gang once promised gangs have started."""

    reason: ClassVar[HoldReason] = HoldReason.BEHIND
    refusal: QuotaCause


@dataclass(frozen=True, slots=True)
class NodesReserved:
    """The free nodes are reserved, or will be before the gang could end."""

    reason: ClassVar[HoldReason] = HoldReason.RESERVED
    reservations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodesPromised:
    """The free nodes are promised to gangs that have waited longer."""

    reason: ClassVar[HoldReason] = HoldReason.BEHIND


@dataclass(frozen=True, slots=True)
class EvaluationDeferred:
    """Other gangs came first in this cycle."""

    reason: ClassVar[HoldReason] = HoldReason.BEHIND


@dataclass(frozen=True, slots=True)
class QuotaStarvationHold:
    """Quota of the queue adds up for a gang that has waited longer for it. user: set if the limit is that of
    one user."""

    reason: ClassVar[HoldReason] = HoldReason.BEHIND
    run: GangId
    queue: QueueName
    user: str | None


@dataclass(frozen=True, slots=True)
class PreemptionPending:
    """Some runs are preempted for the gang."""

    reason: ClassVar[HoldReason] = HoldReason.PREEMPTING
    run_count: int


@dataclass(frozen=True, slots=True)
class ServicePreemptionPending:
    """Runs that have received more service are preempted for the gang."""

    reason: ClassVar[HoldReason] = HoldReason.PREEMPTING


@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """Gangs are ahead of it in the order of the policy."""

    reason: ClassVar[HoldReason] = HoldReason.BEHIND
    count: int


@dataclass(frozen=True, slots=True)
class RequeueBackoff:
    """The gang was requeued. not_before: the time of the next retry; detail: why it was requeued."""

    reason: ClassVar[HoldReason] = HoldReason.PUT_BACK
    not_before: datetime | None
    detail: str


HoldCause = (
    NoCapacityCause
    | NeverFitsCause
    | QuotaCause
    | GpuModelsClosed
    | QuotaPromised
    | NodesReserved
    | NodesPromised
    | EvaluationDeferred
    | QuotaStarvationHold
    | PreemptionPending
    | ServicePreemptionPending
    | QueueBacklog
    | RequeueBackoff
)

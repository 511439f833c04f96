"""Causes for which a run is preempted. run: the gang for which it is preempted."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.ids import GangId, QueueName


@dataclass(frozen=True, slots=True)
class QuotaReclamation:
    """The run's queue uses more than its guarantee; the gang reclaims capacity that `lender` lent."""

    run: GangId
    queue: QueueName
    lender: QueueName


@dataclass(frozen=True, slots=True)
class PriorityPreemption:
    """The gang has the higher priority."""

    run: GangId
    priority: int
    own_priority: int


@dataclass(frozen=True, slots=True)
class TimeSlicePreemption:
    """The gang has received much less service, and the queue uses time slicing."""

    run: GangId
    queue: QueueName


@dataclass(frozen=True, slots=True)
class ServicePreemption:
    """The run has received more service than the gang."""

    run: GangId


@dataclass(frozen=True, slots=True)
class EvaluationPreemption:
    """The run evaluates the checkpoints of the gang, which waits for its resources."""

    run: GangId


@dataclass(frozen=True, slots=True)
class ReservationPreemption:
    """A reservation needs its resources. starts_in_s: seconds until its start, at most 0 if it has
    started."""

    reservation: str
    starts_in_s: float


PreemptionCause = (
    QuotaReclamation
    | PriorityPreemption
    | TimeSlicePreemption
    | ServicePreemption
    | EvaluationPreemption
    | ReservationPreemption
)

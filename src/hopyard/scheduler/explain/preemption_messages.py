"""Sentences for runs that are preempted."""

from __future__ import annotations

from typing import assert_never

from hopyard.domain.duration_text import format_time_until
from hopyard.domain.preemption_causes import (
    EvaluationPreemption,
    PreemptionCause,
    PriorityPreemption,
    QuotaReclamation,
    ReservationPreemption,
    ServicePreemption,
    TimeSlicePreemption,
)
from hopyard.scheduler.explain.run_labels import RunNames, run_id


def preemption_message(cause: PreemptionCause, run_name: RunNames = run_id) -> str:
    match cause:
        case QuotaReclamation(run, queue, lender):
            return (
                f"queue {queue} uses more than its guarantee; run {run_name(run)} reclaims what queue "
                f"{lender} lent"
            )
        case PriorityPreemption(run, priority, own_priority):
            return f"run {run_name(run)} has priority {priority}, this one {own_priority}"
        case TimeSlicePreemption(run, queue):
            return f"run {run_name(run)} has received much less service, and queue {queue} uses time slicing"
        case ServicePreemption(run):
            return f"it has received more service than run {run_name(run)}, which waits for its resources"
        case EvaluationPreemption(run):
            return f"it evaluates run {run_name(run)}, which waits for its resources"
        case ReservationPreemption(reservation, starts_in_s):
            state = "has begun" if starts_in_s <= 0 else f"begins {format_time_until(starts_in_s)}"
            return f"reservation {reservation}, which {state}, needs its resources"
        case _:
            assert_never(cause)

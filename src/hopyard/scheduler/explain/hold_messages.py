"""Sentences for gangs that wait."""

from __future__ import annotations

from typing import assert_never

from hopyard.domain.hold_causes import (
    EvaluationDeferred,
    GpuModelsClosed,
    HoldCause,
    NodesPromised,
    NodesReserved,
    PreemptionPending,
    QueueBacklog,
    QuotaPromised,
    QuotaStarvationHold,
    RequeueBackoff,
    ServicePreemptionPending,
)
from hopyard.domain.ids import GangId
from hopyard.domain.placement_causes import (
    FeasibleNodesClosed,
    FreeEngineShortfall,
    FreeReplicaShortfall,
    FreeRoleShortfall,
    FreeTopologyShortfall,
    NodeSizeShortfall,
    NoFreeNode,
    NoMatchingNode,
    NoSchedulableNode,
    TotalEngineShortfall,
    TotalReplicaShortfall,
    TotalRoleShortfall,
    TotalTopologyShortfall,
)
from hopyard.domain.quota_causes import (
    BorrowLimitReached,
    NonLendableCapacity,
    QueueMaximumReached,
    UnknownQueue,
    UserLimitReached,
)
from hopyard.scheduler.explain.amount_text import format_count
from hopyard.scheduler.explain.placement_messages import never_fits_message, no_capacity_message
from hopyard.scheduler.explain.quota_messages import quota_message
from hopyard.scheduler.explain.run_labels import RunNames, run_id


def hold_message(cause: HoldCause, run_name: RunNames = run_id) -> str:
    match cause:
        case (
            NoSchedulableNode()
            | NoFreeNode()
            | FeasibleNodesClosed()
            | FreeReplicaShortfall()
            | FreeTopologyShortfall()
            | FreeRoleShortfall()
            | FreeEngineShortfall()
        ):
            return no_capacity_message(cause)
        case (
            NoMatchingNode()
            | NodeSizeShortfall()
            | TotalReplicaShortfall()
            | TotalTopologyShortfall()
            | TotalRoleShortfall()
            | TotalEngineShortfall()
        ):
            return never_fits_message(cause)
        case (
            UnknownQueue()
            | UserLimitReached()
            | QueueMaximumReached()
            | BorrowLimitReached()
            | NonLendableCapacity()
        ):
            return quota_message(cause)
        case GpuModelsClosed():
            return f"only GPU models at the limit of its queue are free: {', '.join(cause.models)}"
        case QuotaPromised():
            return f"the quota of its queue is promised to other runs: {quota_message(cause.refusal)}"
        case NodesReserved():
            names = ", ".join(cause.reservations)
            return f"the free nodes are reserved, or will be before it could end: {names}"
        case NodesPromised():
            return (
                "the free nodes are promised to runs that have waited longer, and it could still run when "
                "they start"
            )
        case EvaluationDeferred():
            return "other runs came first in this cycle; the next cycle examines it again"
        case QuotaStarvationHold():
            return f"run {run_name(cause.run)} has waited longer for the quota of {_quota_owner(cause)}"
        case PreemptionPending():
            verb = "was" if cause.run_count == 1 else "were"
            return f"{format_count(cause.run_count, 'run')} {verb} asked to make room for it"
        case ServicePreemptionPending():
            return "runs that have received more service stop for it"
        case QueueBacklog():
            return f"{format_count(cause.count, 'run')} ahead of it"
        case RequeueBackoff():
            at = f" before {cause.not_before:%Y-%m-%d %H:%M:%S} UTC" if cause.not_before is not None else ""
            return f"no retry{at}: {cause.detail}"
        case _:
            assert_never(cause)


def runs_in_hold(cause: HoldCause) -> tuple[GangId, ...]:
    """Returns the runs that the sentence names."""
    return (cause.run,) if isinstance(cause, QuotaStarvationHold) else ()


def _quota_owner(cause: QuotaStarvationHold) -> str:
    if cause.user is None:
        return f"queue {cause.queue}"
    return f"{cause.user or 'its user'} in queue {cause.queue}"

"""Sentences for promises that cannot be kept."""

from __future__ import annotations

from typing import assert_never

from hopyard.domain.breach_causes import (
    ActiveReservation,
    BreachDetail,
    GangEstimateUpdate,
    GuaranteePrecedence,
    NodeCapacityReduced,
    NodeUnavailable,
    PriorityPrecedence,
    PromisePrecedence,
    PropagatedDelay,
    QueueSharePrecedence,
    QuotaReduced,
    ReservationConflict,
    ReservationGranted,
    ReservationUsage,
    RunEstimateUpdate,
    RunOverrun,
    ServicePrecedence,
    UserSharePrecedence,
)
from hopyard.domain.ids import GangId
from hopyard.scheduler.explain.run_labels import RunNames, run_id


def breach_message(detail: BreachDetail, run_name: RunNames = run_id) -> str:
    match detail:
        case NodeUnavailable(node, state):
            return f"node {node} is {state}" if state else f"node {node} was lost"
        case NodeCapacityReduced(nodes):
            verb = "has" if len(nodes) == 1 else "have"
            return f"{', '.join(nodes)} {verb} less capacity than before"
        case ReservationGranted(reservation):
            return f"reservation {reservation} was granted after the promise"
        case ActiveReservation(reservation):
            return f"reservation {reservation} has not ended by then"
        case ReservationConflict(reservation):
            return f"reservation {reservation} starts before its new expected end"
        case ReservationUsage(run, reservation):
            return f"run {run_name(run)} uses its reserved capacity in reservation {reservation}"
        case QuotaReduced():
            return "its queue can use less quota then than expected"
        case RunOverrun(run):
            return f"run {run_name(run)} runs longer than expected"
        case RunEstimateUpdate(run):
            return f"run {run_name(run)} is now expected to run longer"
        case GangEstimateUpdate():
            return "it is now expected to run longer"
        case PriorityPrecedence(run, priority, own_priority):
            return f"run {run_name(run)} has priority {priority}, this one {own_priority}"
        case ServicePrecedence(run, queue):
            return f"run {run_name(run)} has received much less service, and queue {queue} uses time slicing"
        case UserSharePrecedence(run, user, own_user, queue):
            return f"run {run_name(run)} comes first: {user} has used less of queue {queue} than {own_user}"
        case QueueSharePrecedence(run, queue, own_queue):
            return (
                f"run {run_name(run)} comes first: queue {queue} uses less of its share than queue "
                f"{own_queue}"
            )
        case GuaranteePrecedence(run, queue, own_queue):
            return (
                f"run {run_name(run)} is within the guarantee of queue {queue}, and queue {own_queue} "
                "would borrow"
            )
        case PromisePrecedence(run, started):
            verb = "started" if started else "was promised a start"
            return f"run {run_name(run)} {verb} there, and will run there longer"
        case PropagatedDelay(run, root):
            return f"delayed by late run {run_name(run)}: {breach_message(root, run_name)}"
        case _:
            assert_never(detail)


def runs_in_breach(detail: BreachDetail) -> tuple[GangId, ...]:
    """Returns the runs that the sentence names."""
    match detail:
        case PropagatedDelay(run, root):
            return (run, *runs_in_breach(root))
        case (
            NodeUnavailable()
            | NodeCapacityReduced()
            | ReservationGranted()
            | ActiveReservation()
            | ReservationConflict()
            | QuotaReduced()
            | GangEstimateUpdate()
        ):
            return ()
        case _:
            return (detail.run,)

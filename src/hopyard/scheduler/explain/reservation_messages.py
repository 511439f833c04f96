"""Sentences for reservations that cannot be granted, and for the costs of those that are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import assert_never

from hopyard.domain.ids import GangId
from hopyard.scheduler.explain.placement_messages import never_fits_message
from hopyard.scheduler.explain.request_text import format_request
from hopyard.scheduler.explain.run_labels import RunNames, run_id
from hopyard.scheduler.timeline.reservation_admission import (
    AdmissionWarning,
    NodeReserved,
    NonPreemptibleRun,
    NonPreemptibleRuns,
    PieceCapacityConflict,
    PieceCountShortfall,
    PieceSizeShortfall,
    PromiseDelays,
    RejectionCause,
    RunPreemptions,
    UnschedulableNode,
)

MAX_NAMED_CONFLICTS = 3


def rejection_message(cause: RejectionCause, run_name: RunNames = run_id) -> str:
    match cause:
        case PieceSizeShortfall():
            return f"one piece {never_fits_message(cause.cause)}"
        case PieceCountShortfall(capacity, requested, request):
            return (
                f"the nodes it may use hold only {capacity} of the {requested} pieces of "
                f"{format_request(request)} each"
            )
        case PieceCapacityConflict(missing, requested, conflicts):
            reasons = [rejection_message(one, run_name) for one in conflicts[:MAX_NAMED_CONFLICTS]]
            return f"{missing} of the {requested} pieces do not fit at that time: {'; '.join(reasons)}"
        case NodeReserved(node, at, reservations):
            return f"{node} is reserved at {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC: {', '.join(reservations)}"
        case NonPreemptibleRun(run, node):
            return f"run {run_name(run)} on {node} cannot be preempted and will still run then"
        case _:
            assert_never(cause)


def rejection_hints(cause: RejectionCause) -> tuple[str, ...]:
    match cause:
        case PieceSizeShortfall():
            return ()
        case PieceCountShortfall():
            return ("request fewer or smaller pieces",)
        case PieceCapacityConflict():
            return rejection_hints(cause.node_conflicts[0]) if cause.node_conflicts else ()
        case NodeReserved():
            return ("choose another time or other nodes; `hop reserve ls` lists the reservations",)
        case NonPreemptibleRun():
            return ("choose a later time or other nodes, or stop the run",)
        case _:
            assert_never(cause)


def admission_warning_message(warning: AdmissionWarning, run_name: RunNames = run_id) -> str:
    match warning:
        case UnschedulableNode(node):
            return f"node {node} is not schedulable now"
        case NonPreemptibleRuns(runs):
            return f"cannot be preempted and may still run then: {_format_runs(runs, run_name)}"
        case RunPreemptions(runs):
            return f"preempted if they still run then: {_format_runs(runs, run_name)}"
        case PromiseDelays(runs):
            return f"may start later than promised: {_format_runs(runs, run_name)}"
        case _:
            assert_never(warning)


def runs_in_rejection(cause: RejectionCause) -> tuple[GangId, ...]:
    """Returns the runs that the sentence names."""
    if isinstance(cause, PieceCapacityConflict):
        return tuple(run for conflict in cause.node_conflicts for run in runs_in_rejection(conflict))
    return (cause.run,) if isinstance(cause, NonPreemptibleRun) else ()


def runs_in_warnings(warnings: Sequence[AdmissionWarning]) -> tuple[GangId, ...]:
    """Returns the runs that the sentences name."""
    return tuple(
        run
        for warning in warnings
        if not isinstance(warning, UnschedulableNode)
        for run in warning.runs[:MAX_NAMED_CONFLICTS]
    )


def _format_runs(runs: Sequence[GangId], run_name: RunNames) -> str:
    more = f" and {len(runs) - MAX_NAMED_CONFLICTS} more" if len(runs) > MAX_NAMED_CONFLICTS else ""
    return ", ".join(f"run {run_name(run)}" for run in runs[:MAX_NAMED_CONFLICTS]) + more

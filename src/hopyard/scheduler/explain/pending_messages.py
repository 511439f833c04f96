"""Sentences of the explanation of one pending gang."""

from __future__ import annotations

from hopyard.domain.ids import GangId
from hopyard.scheduler.explain.breach_messages import runs_in_breach
from hopyard.scheduler.explain.hold_messages import runs_in_hold
from hopyard.scheduler.explain.run_labels import RunNames, run_id
from hopyard.scheduler.explain.why_pending import PendingExplanation, UnknownDuration


def unknown_duration_message(unknown: UnknownDuration, run_name: RunNames = run_id) -> str:
    count = unknown.ended_count
    ended = (
        "no similar run has ended yet"
        if count == 0
        else f"only {count} {'similar run has' if count == 1 else 'similar runs have'} ended"
    )
    return f"{ended}, so the duration of run {run_name(unknown.run)} is uncertain"


def runs_in_explanation(explanation: PendingExplanation) -> tuple[GangId, ...]:
    """Returns the runs that the sentences and the blockers name."""
    blockers = (name.name.partition(":") for name in explanation.blocked_by)
    return (
        *(GangId(run) for kind, _, run in blockers if kind == "run"),
        *runs_in_hold(explanation.hold.cause),
        *(runs_in_breach(explanation.delay) if explanation.delay is not None else ()),
        *((explanation.unknown_duration.run,) if explanation.unknown_duration is not None else ()),
    )

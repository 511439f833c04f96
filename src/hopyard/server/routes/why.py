"""Explanations why a run waits, and when it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.controller.backoff_holds import backoff_hold
from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.ids import GangId, RunId
from hopyard.domain.run import Run, RunPhase
from hopyard.scheduler.cycle.planner import plan
from hopyard.scheduler.explain.breach_messages import breach_message
from hopyard.scheduler.explain.hold_messages import hold_message
from hopyard.scheduler.explain.pending_messages import runs_in_explanation, unknown_duration_message
from hopyard.scheduler.explain.why_pending import Blocker, PendingExplanation, explain_pending
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.run_names import run_names, with_readable_name
from hopyard.server.run_progress import completed_fractions
from hopyard.server.schemas.why import BandOut, BlockerOut, WhatIfOut, WhyOut
from hopyard.server.services import Services


def why_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def explain(request: ApiRequest[Empty, Empty]) -> WhyOut:
        """Explain why a run waits, what blocks it, when it is expected to start, and which changes would let
        it start sooner."""
        run = await services.runs.get(RunId(request.path["id"]))
        if run.phase is not RunPhase.QUEUED:
            run = await with_readable_name(services.runs, run)
            return _to_why_out(run, detail=_state_text(run))
        if run.held_by is not None:
            return _to_why_out(
                run,
                reason=run.hold_reason,
                detail=f"{run.hold_detail}; release it with `hop update {run.name} --release`",
            )
        snapshot = await services.controller.snapshot()
        gang_in_backoff = next((gang for gang in snapshot.backing_off if gang.id == GangId(run.id)), None)
        if gang_in_backoff is not None and gang_in_backoff.not_before is not None:
            hold, at = backoff_hold(gang_in_backoff), gang_in_backoff.not_before
            return _to_why_out(
                run, reason=hold.reason.value, detail=hold_message(hold.cause), expected=BandOut(at, at, at)
            )
        progress = completed_fractions(services.ingest, snapshot)
        explanation = await asyncio.to_thread(_explain_pending, snapshot, GangId(run.id), progress)
        if explanation is None:
            return _to_why_out(run, detail="it is about to start")
        names = await run_names(services.runs, runs_in_explanation(explanation))
        band, delay = explanation.expected, explanation.delay
        unknown = explanation.unknown_duration

        def run_name(gang: GangId) -> str:
            return names.get(gang, gang)

        return _to_why_out(
            run,
            reason=explanation.hold.reason.value,
            detail=hold_message(explanation.hold.cause, run_name),
            position=explanation.hold.position,
            waiting=explanation.pending_count,
            blocked_by=[to_blocker_out(blocker, names) for blocker in explanation.blocked_by],
            expected=None if band is None else BandOut(band.low_at, band.mid_at, band.high_at),
            promised_at=explanation.promised_at,
            late="" if delay is None else breach_message(delay, run_name),
            unknown="" if unknown is None else unknown_duration_message(unknown, run_name),
            what_if=[WhatIfOut(line.text, line.start_at) for line in explanation.what_if],
        )

    return [Endpoint("GET", "/runs/{id}/why", explain, returns=WhyOut, errors=(404,), is_heavy=True)]


def _explain_pending(
    snapshot: Snapshot, gang: GangId, progress: Mapping[GangId, float]
) -> PendingExplanation | None:
    """Explains a plan of this very snapshot, so that both are consistent."""
    current_plan: Plan = plan(snapshot)
    return explain_pending(snapshot, current_plan, gang, progress)


def _to_why_out(run: Run, **fields: Any) -> WhyOut:
    return WhyOut(run=run.id, name=str(run.name), phase=run.phase.value, queue=run.spec.queue, **fields)


def _state_text(run: Run) -> str:
    nodes = ", ".join(dict.fromkeys(run.attempt.nodes)) if run.attempt is not None else ""
    on_nodes = f" on {nodes}" if nodes else ""
    if run.is_being_synced:
        return "it is not waiting: it was recorded offline and is being synced" + (
            f"; the last upload was at {run.synced_at.isoformat()}" if run.synced_at else ""
        )
    if run.phase is RunPhase.STARTING:
        return f"it is not waiting: it is being prepared{on_nodes}"
    if run.phase is RunPhase.RUNNING:
        return f"it is not waiting: it is running{on_nodes}"
    if run.phase is RunPhase.PAUSED:
        return f"it is not waiting for capacity: it is paused{on_nodes} until `hop resume {run.name}`"
    if run.phase is RunPhase.STOPPING:
        preempt_reason = run.attempt.preempt_reason if run.attempt is not None else ""
        if preempt_reason:
            return f"it is not waiting: it is being preempted{on_nodes}: {preempt_reason}"
        return f"it is not waiting: it is being stopped{on_nodes}"
    reason = f": {run.exit.reason}" if run.exit is not None else ""
    return f"it is not waiting: it has ended ({run.phase.value}){reason}"


def to_blocker_out(blocker: Blocker, names: Mapping[str, str]) -> BlockerOut:
    kind, _, name = blocker.name.partition(":")
    return BlockerOut(kind, names.get(name, name), name, blocker.until)

"""Why a run waits, and when it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.controller.delayed import hold_of
from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.ids import GangId, RunId
from hopyard.domain.run import Run, RunPhase
from hopyard.scheduler.cycle.planner import plan
from hopyard.scheduler.forecast import Blocker, Why, why
from hopyard.server.endpoint import Ask, Endpoint, Nothing
from hopyard.server.names import names_of, readable_one, with_names
from hopyard.server.parts import Parts
from hopyard.server.progress import parts_done
from hopyard.server.why_wire import BandOut, BlockerOut, WhatIfOut, WhyOut


def why_endpoints(parts: Parts) -> Sequence[Endpoint[Any, Any]]:
    async def explain(ask: Ask[Nothing, Nothing]) -> WhyOut:
        """Tell why a run waits, what is in its way, when it is expected to start, and what it could ask for
        to start sooner."""
        run = await parts.runs.get(RunId(ask.path["id"]))
        if run.phase is not RunPhase.QUEUED:
            run = await readable_one(parts.runs, run)
            return _told(run, detail=_standing(run))
        if run.held_by is not None:
            return _told(
                run,
                reason=run.hold_reason,
                detail=f"{run.hold_detail}; `hop update {run.name} --release` lets it start",
            )
        snapshot = await parts.controller.snapshot()
        delayed = next((gang for gang in snapshot.delayed if gang.id == GangId(run.id)), None)
        if delayed is not None and delayed.not_before is not None:
            hold, at = hold_of(delayed), delayed.not_before
            return _told(run, reason=hold.reason.value, detail=hold.detail, expected=BandOut(at, at, at))
        progress = parts_done(parts.ingest, snapshot)
        found = await asyncio.to_thread(_explain, snapshot, GangId(run.id), progress)
        if found is None:
            return _told(run, detail="it is about to start")
        named = await names_of(
            parts.runs,
            (one.name.removeprefix("run:") for one in found.blocked_by if one.name.startswith("run:")),
        )
        detail, late, unknown = await with_names(parts.runs, [found.hold.detail, found.late, found.unknown])
        band = found.expected
        return _told(
            run,
            reason=found.hold.reason.value,
            detail=detail,
            position=found.hold.position,
            waiting=found.waiting,
            blocked_by=[_blocker(one, named) for one in found.blocked_by],
            expected=None if band is None else BandOut(band.low_at, band.mid_at, band.high_at),
            promised_at=found.promised_at,
            late=late,
            unknown=unknown,
            what_if=[WhatIfOut(line.text, line.start_at) for line in found.what_if],
        )

    return [Endpoint("GET", "/runs/{id}/why", explain, returns=WhyOut, errors=(404,), heavy=True)]


def _explain(snapshot: Snapshot, gang: GangId, progress: Mapping[GangId, float]) -> Why | None:
    """Of a plan made anew, so that what is told fits the snapshot."""
    wanted: Plan = plan(snapshot)
    return why(snapshot, wanted, gang, progress)


def _told(run: Run, **more: Any) -> WhyOut:
    return WhyOut(run=run.id, name=str(run.name), phase=run.phase.value, queue=run.spec.queue, **more)


def _standing(run: Run) -> str:
    nodes = ", ".join(dict.fromkeys(run.attempt.nodes)) if run.attempt is not None else ""
    on = f" on {nodes}" if nodes else ""
    if run.being_synced:
        return "it does not wait: it was recorded offline and is being synced" + (
            f"; its last part came at {run.synced_at.isoformat()}" if run.synced_at else ""
        )
    if run.phase is RunPhase.STARTING:
        return f"it does not wait: it is being prepared{on}"
    if run.phase is RunPhase.RUNNING:
        return f"it does not wait: it runs{on}"
    if run.phase is RunPhase.STOPPING:
        makes_room = run.attempt.preempt_reason if run.attempt is not None else ""
        return (
            "it does not wait: it was asked to "
            f"{f'make room{on}: {makes_room}' if makes_room else f'end{on}'}"
        )
    reason = f": {run.exit.reason}" if run.exit is not None else ""
    return f"it does not wait: it has ended ({run.phase.value}){reason}"


def _blocker(one: Blocker, names: Mapping[str, str]) -> BlockerOut:
    kind, _, what = one.name.partition(":")
    return BlockerOut(kind, names.get(what, what), what, one.until)

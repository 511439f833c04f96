"""When a run would start, without submitting it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.config.schemas.run_rules import check_new_run, check_spec
from hopyard.config.schemas.runs import to_run_spec
from hopyard.domain.cluster import Snapshot
from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, RunId, new_run_id
from hopyard.domain.run import RunSpec
from hopyard.errors import DoesNotFit
from hopyard.scheduler.explain.hold_messages import hold_message
from hopyard.scheduler.explain.pending_messages import runs_in_explanation, unknown_duration_message
from hopyard.scheduler.explain.start_preview import StartPreview, preview_sentence, preview_start
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.routes.why import to_blocker_out
from hopyard.server.run_names import run_names
from hopyard.server.run_progress import completed_fractions
from hopyard.server.schemas.preview import PreviewIn, PreviewOut, StartKind
from hopyard.server.schemas.why import BandOut, WhatIfOut
from hopyard.server.services import Services
from hopyard.server.submit_run import accept_spec, pin_versions


def preview_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def preview(request: ApiRequest[Empty, PreviewIn]) -> PreviewOut:
        """Predict when a run would start, without submitting it.

        The scheduler plans the present state with the run added. Nothing is stored, and no capacity is
        reserved, so another run may come first. A run that can never start gets `never` with hints. 400 and
        404 name what a submission would refuse. Missing blobs are ignored.
        """
        user = request.caller.user
        requested = to_run_spec(request.body.spec).with_base_image(services.base_image)
        check_spec(requested)
        check_new_run(requested)
        await pin_versions(services.datasets, requested.datasets)
        try:
            spec = await accept_spec(services, requested, user)
        except DoesNotFit as error:
            return PreviewOut(
                starts=StartKind.NEVER,
                sentence="can never start",
                queue=requested.queue,
                priority=requested.priority,
                detail=error.message,
                hints=error.hints,
            )
        snapshot = await services.controller.snapshot()
        gang = spec.to_gang(RunId(new_run_id(snapshot.now, os.urandom(7))), user, submitted_at=snapshot.now)
        progress = completed_fractions(services.ingest, snapshot)
        result, sentence = await asyncio.to_thread(_preview, snapshot, gang, progress)
        return await _to_preview_out(services, spec, result, sentence)

    return [
        Endpoint(
            "POST",
            "/runs/preview",
            preview,
            body=PreviewIn,
            returns=PreviewOut,
            errors=(400, 404),
            is_heavy=True,
            unaudited_reason="it changes nothing",
        )
    ]


def _preview(snapshot: Snapshot, gang: Gang, progress: Mapping[GangId, float]) -> tuple[StartPreview, str]:
    result = preview_start(snapshot, gang, progress)
    return result, preview_sentence(result, snapshot)


async def _to_preview_out(
    services: Services, spec: RunSpec, result: StartPreview, sentence: str
) -> PreviewOut:
    explanation = result.explanation
    if explanation is None:
        starts = StartKind.UNKNOWN if result.placement is None else StartKind.NOW
        return PreviewOut(
            starts=starts, sentence=sentence, queue=spec.queue, priority=spec.priority, nodes=result.nodes
        )
    names = await run_names(services.runs, runs_in_explanation(explanation))
    band, unknown = explanation.expected, explanation.unknown_duration

    def run_name(gang: GangId) -> str:
        return names.get(gang, gang)

    return PreviewOut(
        starts=StartKind.UNKNOWN if band is None else StartKind.LATER,
        sentence=sentence,
        queue=spec.queue,
        priority=spec.priority,
        reason=explanation.hold.reason.value,
        detail=hold_message(explanation.hold.cause, run_name),
        position=explanation.hold.position,
        waiting=explanation.pending_count,
        blocked_by=[to_blocker_out(blocker, names) for blocker in explanation.blocked_by],
        expected=None if band is None else BandOut(band.low_at, band.mid_at, band.high_at),
        unknown="" if unknown is None else unknown_duration_message(unknown, run_name),
        what_if=[WhatIfOut(line.text, line.start_at) for line in explanation.what_if],
    )

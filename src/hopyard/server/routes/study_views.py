"""Endpoints for viewers of studies: the state, the trials and the units of work, from the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

from msgspec import Meta
from starlette.responses import Response

from hopyard.config.schemas.fields import RequestModel
from hopyard.domain.ids import RunId
from hopyard.domain.run import Run
from hopyard.errors import NotFound
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.responses import JSON, encode
from hopyard.server.schemas.studies import (
    ImportanceOut,
    ImprovementOut,
    StudyOut,
    TrialOut,
    TrialsOut,
    UnitsOut,
    WorkerEventOut,
    integer_out,
    text_out,
    to_best_out,
    to_full_trial_out,
    to_trial_out,
    to_unit_out,
)
from hopyard.server.services import Services
from hopyard.server.study_views import MALFORMED, JournalView, StudyViews
from hopyard.studies.view.study_data import importance_of, is_importance_uncertain
from hopyard.studies.view.study_view import StudyView

MAX_TRIALS = 1000  # of a page
MAX_UNITS = 10_000
_MAX_PAGE_BYTES = 4 * 1024 * 1024
_MAX_IMPROVEMENTS, _MAX_WORKER_EVENTS = 1000, 100
_Place = Annotated[int, Meta(ge=0, le=2**53)]


class TrialsQuery(RequestModel):
    after: Annotated[_Place, Meta(description="`next` of the previous page")] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_TRIALS)] = MAX_TRIALS
    since: Annotated[
        _Place,
        Meta(description="`records` of an earlier response: only trials that have changed since then"),
    ] = 0


class UnitsQuery(RequestModel):
    after: Annotated[
        _Place, Meta(description="`next` of the previous page, or `total` of an earlier response")
    ] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_UNITS)] = MAX_UNITS


def study_view_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    views = StudyViews(services.streams)

    async def open_study(
        request: ApiRequest[Any, Empty],
    ) -> tuple[Run, AbstractAsyncContextManager[JournalView]]:
        await request.lease.reserve_response(_MAX_PAGE_BYTES)
        run = await services.runs.get(RunId(request.path["id"]))
        attempts = [attempt.id for attempt in await services.runs.attempts(run.id)]
        return run, views.read(run, attempts)

    async def study_state(request: ApiRequest[Empty, Empty]) -> StudyOut:
        """Get the state of a study: counts of its trials, its best trial, its best value over time, and the
        importance of its parameters (PED-ANOVA). 409 if its journal has more than 64 MiB."""
        run, opened = await open_study(request)
        async with opened as study:
            return await asyncio.to_thread(_to_study_out, run, study)

    async def trials(request: ApiRequest[TrialsQuery, Empty]) -> Response:
        """List the trials of a study, in the order of their first proposals. A page ends early at 4 MiB."""
        _, opened = await open_study(request)
        async with opened as study:
            data = await asyncio.to_thread(_encode_trials, study, request.query)
        return Response(data, media_type=JSON)

    async def one_trial(request: ApiRequest[Empty, Empty]) -> TrialOut:
        """Get a trial of a study with its curve, and the params that its state was trained with."""
        run, opened = await open_study(request)
        async with opened as study:
            name = request.path["trial"]
            trial = study.view.trials.get(name)
            if trial is None:
                count = len(study.view.trials)
                raise NotFound(
                    f"{run.name} has no trial {name}",
                    hints=(f"it has {count} trials: 0 to {count - 1}" if count else "it has no trial yet",),
                )
            return to_full_trial_out(study.view, trial)

    async def units(request: ApiRequest[UnitsQuery, Empty]) -> UnitsOut:
        """List the units of work of a study with `parallel: mop`: training and evaluation of trials on
        partitions, for a Gantt chart. Any other study has none."""
        _, opened = await open_study(request)
        async with opened as study:
            bars = study.view.bars
            end = request.query.after + request.query.limit
            units = [to_unit_out(bar) for bar in bars[request.query.after : end]]
            return UnitsOut(units, len(bars), end if end < len(bars) else None)

    return [
        Endpoint("GET", "/runs/{id}/study", study_state, returns=StudyOut, errors=(400, 404, 409)),
        Endpoint(
            "GET",
            "/runs/{id}/study/trials",
            trials,
            TrialsQuery,
            returns=TrialsOut,
            errors=(400, 404, 409),
        ),
        Endpoint(
            "GET", "/runs/{id}/study/trials/{trial}", one_trial, returns=TrialOut, errors=(400, 404, 409)
        ),
        Endpoint(
            "GET", "/runs/{id}/study/units", units, UnitsQuery, returns=UnitsOut, errors=(400, 404, 409)
        ),
    ]


def _to_study_out(run: Run, study: JournalView) -> StudyOut:
    view = study.view
    return StudyOut(
        id=run.id,
        name=str(run.name),
        phase=run.phase,
        metric=view.metric,
        goal=view.goal,
        unit=view.unit,
        parallel=str(view.spec["parallel"]),
        searcher=str((view.spec.get("searcher") or {}).get("name", "random")),
        trial_limit=view.spec.get("trials"),
        max_budget=int(view.spec.get("max_epochs") or 1),
        done=view.done,
        counts=view.counts(),
        best=to_best_out(view),
        importance=[
            ImportanceOut(text_out(name), share) for name, share in _readable_importance(view).items()
        ],
        importance_uncertain=is_importance_uncertain(view),
        improvements=[
            ImprovementOut(
                each.at,
                text_out(each.trial),
                integer_out(each.step),
                each.value,
                each.trials,
                each.reports,
            )
            for each in view.improvements[-_MAX_IMPROVEMENTS:]
        ],
        stop_rule=text_out(view.stop_rule) if view.stop_rule else None,
        continues=text_out(view.continues) if view.continues else None,
        units=len(view.bars),
        hops=view.hops,
        hop_bytes=integer_out(view.hop_bytes),
        resumed=view.resumed,
        records=study.records,
        skipped=study.skipped,
        workers=[
            WorkerEventOut(text_out(note.worker), text_out(note.event), text_out(note.detail))
            for note in view.notes[-_MAX_WORKER_EVENTS:]
        ],
    )


def _readable_importance(view: StudyView) -> dict[str, float]:
    """Returns no importance for params that are not values of the space: a program of the user wrote them."""
    try:
        return importance_of(view)
    except (*MALFORMED, AssertionError):
        return {}


def _encode_trials(study: JournalView, query: TrialsQuery) -> bytes:
    """Returns the JSON of TrialsOut: from the place `after` on, in the order of first proposals."""
    rows: list[bytes] = []
    size, next_place = 0, None
    for place, trial in enumerate(study.view.trials.values()):
        if place < query.after or study.changed.get(trial.id, 0) <= query.since:
            continue
        if len(rows) == query.limit or size > _MAX_PAGE_BYTES:
            next_place = place
            break
        rows.append(encode(to_trial_out(trial)))
        size += len(rows[-1])
    return b'{"trials":[%b],"records":%d,"next":%b}' % (b",".join(rows), study.records, encode(next_place))

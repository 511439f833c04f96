"""Runs: submit, list, find, update, stop, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from hopyard.config.schemas.fields import (
    MAX_NAMES,
    TEXT,
    Id,
    Key,
    Label,
    Name,
    Priority,
    RequestModel,
    Seconds,
    Text,
    Time,
    full_match,
)
from hopyard.config.schemas.run_rules import check_new_run
from hopyard.config.schemas.runs import MAX_ROLES, RoleIn, SpecIn, to_run_spec
from hopyard.domain.audit import AuditFilter, Outcome
from hopyard.domain.ids import QueueName, RunId, RunName, check_name
from hopyard.domain.param_format import names_of_sentence
from hopyard.domain.replica import StopOrder
from hopyard.domain.run import (
    Attempt,
    RoleSpec,
    Run,
    RunEvent,
    RunEventKind,
    RunPhase,
    RunSpec,
    stop_sentence,
)
from hopyard.errors import Conflict, NotFound, SpecError
from hopyard.server.audit import STOP_ACTION
from hopyard.server.authentication import Caller
from hopyard.server.authorization import check_current_study_attempt, check_may_stop
from hopyard.server.delete_run import delete_run
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.other_servers import attempts_on_other_servers
from hopyard.server.pages import MAX_ROWS, Limit, PageQuery, paginate
from hopyard.server.resolve_run import resolve_run
from hopyard.server.routes.run_list import trial_counts
from hopyard.server.run_evaluation import check_evaluation, record_evaluation
from hopyard.server.run_names import replace_run_ids, run_names, with_readable_name
from hopyard.server.schemas.runs import PinnedOut, ProgressOut, RunOut, encode_latest, to_run_out
from hopyard.server.services import Services
from hopyard.server.submit_run import submit_run
from hopyard.server.trial_access import check_trial_submission
from hopyard.server.update_run import ReplacedText, RunUpdate, update_run

PLAN_TIMEOUT_S = 1.0
MAX_NEWEST_EVENTS = 100  # attempts and events in the response of a run
_Note = Annotated[str, Meta(max_length=4096, pattern=TEXT)]


class SubmitQuery(RequestModel):
    plan: Annotated[
        int,
        Meta(ge=0, le=1, description="1: waits up to a second until the scheduler has decided on the run"),
    ] = 0


class SubmitIn(RequestModel):
    """A run to create. `id` is chosen by the client, so that a retry is safe."""

    spec: SpecIn
    id: Id | None = None


class OfflineIn(RequestModel):
    """A run that was recorded without a server. Its streams follow as those of attempt 1, rank 0."""

    spec: SpecIn
    id: Id
    started_at: Time


class EventsQuery(RequestModel):
    """after: `next` of the previous page."""

    limit: Limit = MAX_ROWS
    after: Annotated[
        int, Meta(ge=0, le=2**53, description="number of events to skip: `next` of the previous page")
    ] = 0


class EventsOut(Struct, frozen=True):
    """Oldest first. next: `after` of the next page; null at the end."""

    events: list[RunEvent]
    next: int | None


class AttemptsOut(Struct, frozen=True):
    """Oldest first. next: `after` of the next page; null at the end."""

    attempts: list[Attempt]
    next: str | None


class RefQuery(RequestModel):
    ref: Annotated[
        str,
        Meta(max_length=400, pattern=TEXT, description="id or its beginning, name, number, label or `last`"),
    ]
    project: (
        Annotated[
            Name,
            Meta(description="current project of the caller: a bare number is resolved there first"),
        ]
        | None
    ) = None


class DeleteQuery(RequestModel):
    force: Annotated[
        int, Meta(ge=0, le=1, description="1: stops the run first, with a short grace period")
    ] = 0


class ReplacedIn(RequestModel):
    """label, note and values of tags as the caller read them; null for a tag that was absent. Omitted ones
    are not compared."""

    label: Label | None = None
    note: _Note | None = None
    tags: Annotated[dict[Key, Text | None], Meta(max_length=2 * MAX_NAMES)] | None = None


class UpdateIn(RequestModel):
    """The changes; omitted fields keep their values. queue, priority, time_limit_s (null: no limit), roles
    (the same, with other resources) and hold apply to waiting runs; label, note, tags (merged in) and untag
    to every run, and archived to ended runs. hold: false releases a held run. replaces: nothing is changed if
    the run has other values than these."""

    queue: Name | None = None
    priority: Priority | None = None
    time_limit_s: Seconds | UnsetType | None = UNSET
    roles: Annotated[tuple[RoleIn, ...], Meta(min_length=1, max_length=MAX_ROLES)] | None = None
    hold: bool | None = None
    label: Label | None = None
    note: _Note | None = None
    tags: Annotated[dict[Key, Text], Meta(max_length=MAX_NAMES)] | None = None
    untag: Annotated[tuple[Key, ...], Meta(max_length=MAX_NAMES)] = ()
    archived: bool | None = None
    replaces: ReplacedIn | None = None


class UpdatedOut(Struct, frozen=True):
    """changes: descriptions of the changes, with old and new values; empty if nothing differed."""

    run: RunOut
    changes: list[str]


class StopIn(RequestModel):
    """at_safe_point: a script that has safe points exits at its next one, with a checkpoint. signal: what the
    processes get first. INT, HUP and QUIT go to the whole process group, as from a terminal; the others to
    the process that the command started. Without it, that of an earlier request, or else SIGTERM. trial: only
    this trial of a study, if its trials hop between workers; the study continues."""

    grace_s: Annotated[float, Meta(ge=0, le=3600.0)] = 10.0
    at_safe_point: bool = False
    signal: Literal["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"] | None = None
    trial: Annotated[str, Meta(pattern=full_match("0|[1-9][0-9]{0,8}"))] | None = None


def run_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def submit(request: ApiRequest[SubmitQuery, SubmitIn]) -> RunOut:
        """Submit a run.

        409 `missing_blobs` lists the blobs of code, requirements and diff to upload first. 400 names the
        invalid field of the spec, or the resource that no node has enough of. The token of a study submits
        runs of its trials, with the study as `parent`. They wait in the queue of the study, as its user.
        """
        spec, user = to_run_spec(request.body.spec), request.caller.user
        if spec.study is not None and spec.study["continues"]:
            raise SpecError(
                "study.continues: this request cannot continue a study",
                hints=("use POST /runs/{id}/continue, or `hop search resume`",),
            )
        if spec.study is not None and spec.study["beginning"]:
            raise SpecError(
                "study.beginning: this request cannot fork a study",
                hints=("use POST /runs/{id}/fork, or `hop fork STUDY --checkpoint best`",),
            )
        spec = await _with_lineage(services, spec, request.caller.user)
        await check_evaluation(services, request.caller, spec)
        await check_current_study_attempt(request.caller, services.runs)
        if request.caller.run is None:
            check_new_run(spec)
        if request.caller.run is not None or spec.parent is not None:
            spec, user = await check_trial_submission(services.runs, request.caller, spec, request.body.id)
        run = await submit_run(services, spec, user=user, run_id=request.body.id)
        # the study may have ended meanwhile, after it stopped its trials
        if spec.parent is not None and (await services.runs.get(spec.parent)).phase.is_final:
            await services.controller.stop(run.id)
        await record_evaluation(services, run)
        return await submission_response(services, request, run, spec)

    async def record_offline(request: ApiRequest[Empty, OfflineIn]) -> RunOut:
        """Record a run that ended without a server. It counts as running until all of it is uploaded. A start
        time in the future is replaced by the current time."""
        started_at = min(request.body.started_at.astimezone(UTC), services.now())
        if started_at.timestamp() < _MIN_TIMESTAMP:
            raise SpecError("started_at: the time is before 1970")
        spec = to_run_spec(request.body.spec)
        if spec.parent is not None or spec.study is not None or spec.evaluation is not None:
            raise SpecError("spec: a study, a trial or an evaluation cannot be recorded offline")
        spec = await _with_lineage(services, spec, request.caller.user)
        run = await submit_run(
            services,
            spec,
            user=request.caller.user,
            run_id=request.body.id,
            offline=True,
            submitted_at=started_at,
        )
        await services.runs.record_synced(run.id, services.now())
        return to_run_out(await services.runs.get(run.id), request.caller)

    async def find(request: ApiRequest[RefQuery, Empty]) -> RunOut:
        """Find a run by its id, name, number or label. The reference is an id or a part of an id (6
        characters or more), a name, a label (the newest run), or `last`. A name is `user/project/12`, or
        `project/12` or `12` for the caller's runs. A bare number means the run of `project`, else the
        caller's only run with that number. 400 lists the projects if several runs match. 404 suggests close
        names."""
        run = await resolve_run(
            services.runs, request.query.ref, user=request.caller.user, project=request.query.project
        )
        return await full_run(services, request.caller, run)

    async def get(request: ApiRequest[Empty, Empty]) -> RunOut:
        """Get a run with its newest attempts, newest events, latest metrics and progress."""
        return await full_run(services, request.caller, await services.runs.get(RunId(request.path["id"])))

    async def events(request: ApiRequest[EventsQuery, Empty]) -> EventsOut:
        """List the scheduler's decisions and the changes of a run: promises, their breaches, preemptions,
        updates."""
        rows = await services.runs.events(
            RunId(request.path["id"]), after=request.query.after, limit=request.query.limit + 1
        )
        page = rows[: request.query.limit]
        return EventsOut(
            await _events_with_run_names(services, page),
            request.query.after + len(page) if len(rows) > len(page) else None,
        )

    async def attempts(request: ApiRequest[PageQuery, Empty]) -> AttemptsOut:
        """List the attempts of a run."""
        page, after = paginate(
            await services.runs.attempts(RunId(request.path["id"])),
            request.query,
            key=lambda attempt: f"{attempt.number:010}",
        )
        return AttemptsOut(await _attempts_with_run_names(services, page), after)

    async def by_name(request: ApiRequest[Empty, Empty]) -> RunOut:
        """Get a run by its name."""
        name = RunName(
            check_name(request.path["user"], subject="user"),
            check_name(request.path["project"], subject="project"),
            int(request.path["number"]),
        )
        run = await services.runs.find_by_name(name)
        if run is None:
            raise NotFound(f"there is no run {name}", hints=("list the runs with `hop ps --all`",))
        return await full_run(services, request.caller, run)

    async def stop(request: ApiRequest[Empty, StopIn]) -> RunOut:
        """Stop a run. A waiting run ends at once; the processes of a live run get SIGTERM, or `signal`, and
        SIGKILL after the grace period. 403 unless the caller is the user of the run, administers its queue or
        an ancestor, owns the server, or is its study."""
        run_id = RunId(request.path["id"])
        run = await services.runs.get(run_id)
        check_may_stop(
            request.caller, run, await services.queue_cache.tree(), owner=services.queue_cache.owner
        )
        await check_current_study_attempt(request.caller, services.runs)
        if request.body.trial is not None:
            await _request_trial_stop(services, run, request.body.trial, request.caller.user)
            return to_run_out(await with_readable_name(services.runs, run), request.caller)
        body = request.body
        order = StopOrder.for_request(body.grace_s, body.signal or "", preempt=body.at_safe_point)
        await services.controller.stop(run_id, order)
        return to_run_out(
            await with_readable_name(services.runs, await services.runs.get(run_id)), request.caller
        )

    async def update(request: ApiRequest[Empty, UpdateIn]) -> UpdatedOut:
        """Change a run: its name, tags and note at any time; queue, priority, time limit, resources and hold
        while it waits.

        The change becomes an event of the run, with its time, its user, old and new values. 400 as for a
        submission. 403 unless the caller is the user of the run, administers its queue or an ancestor, or
        owns the server; 403 also for a queue that the caller or the run's user may not use. 409 if the run no
        longer waits, and if another caller has changed a value of `replaces` since.
        """
        body = request.body
        time_limit_s = None if body.time_limit_s is UNSET else body.time_limit_s
        run_update = RunUpdate(
            queue=None if body.queue is None else QueueName(body.queue),
            priority=body.priority,
            time_limit_s=time_limit_s,
            remove_time_limit=body.time_limit_s is None,
            roles=None
            if body.roles is None
            else tuple(msgspec.convert(role, RoleSpec, from_attributes=True) for role in body.roles),
            held=body.hold,
            label=body.label,
            note=body.note,
            tags=body.tags,
            untag=body.untag,
            archived=body.archived,
            replaced=None
            if body.replaces is None
            else ReplacedText(body.replaces.label, body.replaces.note, body.replaces.tags),
        )
        run, changes = await update_run(services, RunId(request.path["id"]), run_update, request.caller)
        return UpdatedOut(to_run_out(await with_readable_name(services.runs, run), request.caller), changes)

    async def delete(request: ApiRequest[DeleteQuery, Empty]) -> Empty:
        """Delete a run that has ended or is being synced, with its streams, checkpoints and trials. 403 as
        for a stop of the run."""
        run_id = RunId(request.path["id"])
        run = await services.runs.get(run_id)
        check_may_stop(
            request.caller, run, await services.queue_cache.tree(), owner=services.queue_cache.owner
        )
        await delete_run(services, run, force=bool(request.query.force))
        return Empty()

    return [
        Endpoint(
            "POST",
            "/runs",
            submit,
            SubmitQuery,
            SubmitIn,
            RunOut,
            201,
            auth="run",
            errors=(400, 404, 409, 507),
            rate="submissions",
            audit="run.submit",
        ),
        Endpoint("GET", "/runs/resolve", find, RefQuery, returns=RunOut, errors=(400, 404)),
        Endpoint(
            "POST",
            "/runs/offline",
            record_offline,
            body=OfflineIn,
            returns=RunOut,
            status=201,
            errors=(400, 404, 409, 507),
            audit="run.record",
        ),
        Endpoint("GET", "/runs/by-name/{user}/{project}/{number}", by_name, returns=RunOut, errors=(400,)),
        Endpoint("GET", "/runs/{id}", get, returns=RunOut, auth="study"),
        Endpoint("GET", "/runs/{id}/events", events, EventsQuery, returns=EventsOut, auth="study"),
        Endpoint("GET", "/runs/{id}/attempts", attempts, PageQuery, returns=AttemptsOut, auth="study"),
        Endpoint(
            "PATCH",
            "/runs/{id}",
            update,
            body=UpdateIn,
            returns=UpdatedOut,
            errors=(400, 409),
            audit="run.update",
        ),
        Endpoint("DELETE", "/runs/{id}", delete, DeleteQuery, returns=Empty, errors=(409,)),
        Endpoint("POST", "/runs/{id}/stop", stop, body=StopIn, returns=RunOut, auth="study"),
    ]


_MIN_TIMESTAMP = 0.0


async def _request_trial_stop(services: Services, run: Run, trial: str, user: str) -> None:
    """Records the request for the driver of the study. Raises SpecError if the trials are runs, or there are
    none; Conflict if the study has ended."""
    if run.spec.study is None or run.spec.study.get("mop") is None:
        raise SpecError(
            f"trial: {run.name} has no trials that hop between workers",
            hints=("stop the run of a trial instead: `hop stop RUN`",),
        )
    if run.phase.is_final:
        raise Conflict(f"the study {run.name} has ended")
    event = RunEvent(services.now(), RunEventKind.STOP_TRIAL, stop_sentence(trial, user))
    await services.runs.record_event(run.id, event)


async def _with_lineage(services: Services, spec: RunSpec, user: str) -> RunSpec:
    """Returns the spec with the runs that it continues. Raises SpecError unless `forked_from` is an existing
    run that is no study, or absent.

    A run that starts from a checkpoint is a fork of the run of that checkpoint. It starts from a checkpoint
    that a script saved itself by `initial_folder`. Other files and studies are forked by
    `POST /runs/{id}/fork`. A trial may resume from the checkpoint or the files of another trial, which is
    checked elsewhere.
    """
    if spec.initial_folder is not None and spec.parent is None:
        return await _with_own_checkpoint(services, spec, user)
    await _check_lineage(services, spec)
    return spec


async def _with_own_checkpoint(services: Services, spec: RunSpec, user: str) -> RunSpec:
    if spec.forked_from is None or spec.resume is not None or spec.study is not None:
        raise SpecError(
            "initial_folder: this request cannot start from the files of a run",
            hints=("use POST /runs/{id}/fork with `files`, or `hop fork RUN --files`",),
        )
    await _check_fork_source(services, spec.forked_from)
    source = await services.runs.get(spec.forked_from)
    if source.name.user != user:
        raise SpecError(
            f"initial_folder: {source.name} is a run of another user, and its files may run that user's code",
            hints=(f"use `hop fork {source.name} --checkpoint STEP --trust`, if you trust that user",),
        )
    saved = await services.runs.checkpoints(source.id, own=True)
    if not any(each.path and each.manifest == spec.initial_folder for each in saved):
        raise SpecError(
            f"initial_folder: the script of {source.name} has saved no such checkpoint",
            hints=("list its checkpoints with `hop checkpoint ls RUN`",),
        )
    return replace(spec, continued_runs=source.continued_by_next())


async def _check_lineage(services: Services, spec: RunSpec) -> None:
    if spec.forked_from is None:
        return
    resume = spec.resume
    if resume is None and spec.parent is None and spec.study is None:
        await _check_fork_source(services, spec.forked_from)
        return
    is_resumed = resume is not None and resume.run == spec.forked_from
    if is_resumed and resume is not None and spec.parent is None:
        saved = await services.runs.checkpoints(resume.run)
        is_resumed = any(checkpoint.manifest == resume.manifest for checkpoint in saved)
    if not is_resumed:
        raise SpecError(
            "forked_from: it is not the run that saved the checkpoint of `resume`",
            hints=("use POST /runs/{id}/fork, or `hop fork RUN`",),
        )


async def _check_fork_source(services: Services, source: RunId) -> None:
    try:
        run = await services.runs.get(source)
    except NotFound:
        raise SpecError(
            f"forked_from: there is no run {source}", hints=("leave out `forked_from`",)
        ) from None
    if run.spec.study is not None:
        raise SpecError(
            f"forked_from: {run.name} is a study",
            hints=("use POST /runs/{id}/fork, or `hop fork STUDY`",),
        )


async def submission_response(
    services: Services,
    request: ApiRequest[SubmitQuery, Any],
    run: Run,
    requested: RunSpec,
    *,
    not_inherited: Sequence[str] = (),
    removed_queue: str | None = None,
) -> RunOut:
    """Returns the response to a submission: the run, after its first scheduling cycle if that was requested,
    and notices for its user."""
    if request.query.plan and run.phase is RunPhase.QUEUED:
        await services.controller.wait_for_cycle(PLAN_TIMEOUT_S)
        run = await services.runs.get(run.id)
    notices = {
        "not_inherited": not_inherited,
        "queue_gone": removed_queue,
        "pinned": await _foreign_pinned(services, run, requested),
    }
    return to_run_out(
        await with_readable_name(services.runs, run),
        request.caller,
        **{name: value for name, value in notices.items() if value},
    )


async def _foreign_pinned(services: Services, run: Run, requested: RunSpec) -> list[PinnedOut]:
    """Returns the requested datasets without a version whose newest version was pushed by another user."""
    unversioned = {ref.name for ref in requested.datasets if not ref.version}
    pinned: list[PinnedOut] = []
    for ref in run.spec.datasets:
        if ref.name in unversioned:
            version = await services.datasets.version(ref.name, ref.version)
            if version.created_by != run.name.user:
                pinned.append(PinnedOut(ref.name, version.number, version.created_by, version.created_at))
    return pinned


async def full_run(services: Services, caller: Caller, run: Run) -> RunOut:
    """Returns a run with everything in the response of `GET /runs/{id}`."""
    run = await with_readable_name(services.runs, run)
    latest = services.ingest.latest_metrics(await services.runs.latest_metrics([run.id]))[run.id]
    live = services.ingest.find_live_run(run.id)
    live_progress = live.progress if live is not None else None
    progress = (
        ProgressOut(live_progress.done, live_progress.total, live_progress.unit)
        if live_progress is not None
        else None
    )
    attempts = (await services.runs.attempts(run.id))[-MAX_NEWEST_EVENTS:]
    # a replica's events arrive after those of the server at the same time
    events = sorted(
        await services.runs.events(run.id, limit=MAX_NEWEST_EVENTS, newest=True), key=attrgetter("at")
    )
    studies = [run.id] if run.spec.study is not None else []
    trials = trial_counts(run, await services.runs.count_trials(studies) if studies else {})
    return to_run_out(
        run,
        caller,
        latest=encode_latest(latest),
        starred=run.id in await services.runs.starred_of(caller.user, [run.id]),
        trials=trials,
        attempts=await _attempts_with_run_names(services, attempts),
        events=await _events_with_run_names(services, events),
        unread_params=_unread_params(events),
        progress=progress,
        stopped_by=await _stopped_by(services, run) if run.stop_requested else None,
        machine_env=await services.runs.machine_env(run.id),
        elsewhere=list((await attempts_on_other_servers(services, run)).values()),
        **await _fork_origin(services, run),
    )


def _unread_params(events: Sequence[RunEvent]) -> list[str]:
    unread = [event for event in events if event.kind is RunEventKind.UNREAD_PARAMS]
    return names_of_sentence(unread[-1].detail) if unread else []


async def _attempts_with_run_names(services: Services, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Returns the attempts with run names in their preemption reasons."""
    texts = await replace_run_ids(services.runs, [attempt.preempt_reason for attempt in attempts])
    return [replace(attempt, preempt_reason=text) for attempt, text in zip(attempts, texts, strict=True)]


async def _events_with_run_names(services: Services, events: Sequence[RunEvent]) -> list[RunEvent]:
    """Returns the events with run names in their details."""
    texts = await replace_run_ids(services.runs, [event.detail for event in events])
    return [replace(event, detail=text) for event, text in zip(events, texts, strict=True)]


async def _fork_origin(services: Services, run: Run) -> Mapping[str, str | None]:
    """Returns the name of the run that was forked."""
    origin = run.spec.forked_from
    return (
        {} if origin is None else {"forked_from_name": (await run_names(services.runs, [origin])).get(origin)}
    )


async def _stopped_by(services: Services, run: Run) -> str | None:
    """Returns the user who first requested the stop of the run."""
    records = await services.audit.list(AuditFilter(action=STOP_ACTION, target=run.id, outcome=Outcome.DONE))
    return records[-1].user if records else None

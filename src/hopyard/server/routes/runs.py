"""Runs: submit, list, find, stop, delete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from hopyard.config.home import Home
from hopyard.config.schemas.fields import (
    MAX_NAMES,
    RUN_ID,
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
    word_list_pattern,
)
from hopyard.config.schemas.run_rules import check_new_variables
from hopyard.config.schemas.runs import MAX_ROLES, RoleIn, SpecIn, to_run_spec
from hopyard.controller.orphan_cleanup import remove_tree
from hopyard.domain.audit import AuditFilter, Outcome
from hopyard.domain.ids import QueueName, RunId, RunName, check_name
from hopyard.domain.run import Attempt, RoleSpec, Run, RunEvent, RunPhase, RunSpec
from hopyard.domain.spec_summary import truncate_values
from hopyard.errors import Conflict, Forbidden, NotFound, SpecError
from hopyard.interfaces.run_store import RunFilter
from hopyard.server.audit import STOP_ACTION
from hopyard.server.authentication import RUN_TOKEN_HINT, Caller
from hopyard.server.authorization import check_current_study_attempt, check_may_stop
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.other_servers import attempts_elsewhere
from hopyard.server.pages import MAX_ROWS, Limit, PageQuery, paginate
from hopyard.server.resolve_run import resolve_run
from hopyard.server.run_names import replace_run_ids, run_names, with_readable_name, with_readable_names
from hopyard.server.schemas.runs import PinnedOut, ProgressOut, RunOut, RunsOut, to_run_out
from hopyard.server.services import Services
from hopyard.server.submit_run import submit_run
from hopyard.server.trial_access import check_trial_submission, list_trials
from hopyard.server.update_run import RunUpdate, update_run

PLAN_TIMEOUT_S = 1.0
log = logging.getLogger("hopyard.server")
_STOP_TIMEOUT_S = 60.0
MAX_NEWEST_EVENTS = 100  # attempts and events in the answer of a run
_MAX_TAG_FILTERS = 32  # that one listing asks for


class SubmitQuery(RequestModel):
    plan: Annotated[
        int,
        Meta(ge=0, le=1, description="1: waits up to a second until the scheduler has decided on the run"),
    ] = 0


class SubmitIn(RequestModel):
    """A run to be made. `id` is chosen by the client, so that sending the same again is harmless."""

    spec: SpecIn
    id: Id | None = None


class OfflineIn(RequestModel):
    """A run that was recorded without a server. Its streams follow as those of attempt 1, rank 0."""

    spec: SpecIn
    id: Id
    started_at: Time


_TagFilter = Annotated[str, Meta(pattern=full_match(r"[^=\x00]+=[^\x00]*"), max_length=1400)]


class ListQuery(RequestModel):
    phase: (
        Annotated[
            str,
            Meta(
                description="phases, separated by commas", max_length=256, pattern=word_list_pattern(RunPhase)
            ),
        ]
        | None
    ) = None
    user: Name | None = None
    project: Name | None = None
    label: Annotated[str, Meta(max_length=128, pattern=TEXT)] | None = None
    tag: Annotated[
        tuple[_TagFilter, ...],
        Meta(
            max_length=_MAX_TAG_FILTERS,
            description="KEY=VALUE, repeatable: runs with all of these tags",
        ),
    ] = ()
    dataset: Name | None = None
    text: (
        Annotated[str, Meta(max_length=256, pattern=TEXT, description="part of a name, label or tag")] | None
    ) = None
    parent: Annotated[str, Meta(pattern=RUN_ID, description="only trials of this study")] | None = None
    studies: Annotated[int, Meta(ge=0, le=1, description="1: only studies")] = 0
    trials: Annotated[int, Meta(ge=0, le=1, description="0: without the runs of trials")] = 1
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    before: Annotated[str, Meta(pattern=RUN_ID, description="only runs older than this run")] | None = None


class EventsQuery(RequestModel):
    """after: `next` of the page before."""

    limit: Limit = MAX_ROWS
    after: Annotated[
        int, Meta(ge=0, le=2**53, description="number of runs to skip: `next` of the previous page")
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


class UpdateIn(RequestModel):
    """What is to be different; what is left out stays. queue, priority, time_limit_s (null: no limit), roles
    (as they are, with other resources) and hold are for runs that wait; label, note, tags (merged in) and
    untag for every run. hold: false releases a run that is held."""

    queue: Name | None = None
    priority: Priority | None = None
    time_limit_s: Seconds | UnsetType | None = UNSET
    roles: Annotated[tuple[RoleIn, ...], Meta(min_length=1, max_length=MAX_ROLES)] | None = None
    hold: bool | None = None
    label: Label | None = None
    note: Annotated[str, Meta(max_length=4096, pattern=TEXT)] | None = None
    tags: Annotated[dict[Key, Text], Meta(max_length=MAX_NAMES)] | None = None
    untag: Annotated[tuple[Key, ...], Meta(max_length=MAX_NAMES)] = ()


class UpdatedOut(Struct, frozen=True):
    """changes: what was changed, from what to what, in words; none where nothing differed."""

    run: RunOut
    changes: list[str]


class StopIn(RequestModel):
    """at_safe_point: a script that has safe points leaves at its next one, with a checkpoint."""

    grace_s: Annotated[float, Meta(ge=0, le=3600.0)] = 10.0
    at_safe_point: bool = False


def run_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def submit(ask: ApiRequest[SubmitQuery, SubmitIn]) -> RunOut:
        """Submit a run.

        409 `missing_blobs` lists the blobs of code, requirements and diff to upload first. 400 names the
        invalid field of the spec, or the resource that no node has enough of. The token of a study submits
        runs of its trials, with the study as `parent`. They wait in the queue of the study, as its user.
        """
        spec, user = to_run_spec(ask.body.spec), ask.caller.user
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
        _check_not_forked(spec)
        await check_current_study_attempt(ask.caller, services.runs)
        if ask.caller.run is None:
            check_new_variables(spec)
        if ask.caller.run is not None or spec.parent is not None:
            spec, user = await check_trial_submission(services.runs, ask.caller, spec, ask.body.id)
        run = await submit_run(services, spec, user=user, run_id=ask.body.id)
        # it ended meanwhile, and looked for its trials
        if spec.parent is not None and (await services.runs.get(spec.parent)).phase.is_final:
            await services.controller.stop(run.id)
        return await submission_response(services, ask, run, spec)

    async def record_offline(ask: ApiRequest[Empty, OfflineIn]) -> RunOut:
        """Record a run that ended without a server: it counts as running until all of it has come.
        One with a clock that was ahead began now, at the latest."""
        started_at = min(ask.body.started_at.astimezone(UTC), services.now())
        if started_at.timestamp() < _MIN_TIMESTAMP:
            raise SpecError("started_at: the time is before 1970")
        spec = to_run_spec(ask.body.spec)
        if spec.parent is not None or spec.study is not None:
            raise SpecError("spec: a study or a trial cannot be recorded offline")
        _check_not_forked(spec)
        run = await submit_run(
            services, spec, user=ask.caller.user, run_id=ask.body.id, offline=True, submitted_at=started_at
        )
        await services.runs.record_synced(run.id, services.now())
        return to_run_out(await services.runs.get(run.id), ask.caller)

    async def list_runs(ask: ApiRequest[ListQuery, Empty]) -> RunsOut:
        """List runs, newest first, with the latest values of the first metrics.

        Rows are light: of a spec `env` and `environment.packages` are empty, of `params`, `tags`, `summary`,
        `latest` and commands the first come, and of a study what it is about. `GET /runs/{id}` has all of it.
        """
        where = ask.query
        if ask.caller.run is not None and where.parent != ask.caller.run:
            raise Forbidden(
                "the token of a run lists its trials only", hints=("set `parent` to the run", RUN_TOKEN_HINT)
            )
        found = await services.runs.list(
            RunFilter(
                phases=_parse_phases(where.phase),
                user=where.user,
                project=where.project,
                label=where.label,
                tags=_parse_tags(where.tag),
                dataset=where.dataset,
                text=where.text,
                parent=RunId(where.parent) if where.parent else None,
                studies=bool(where.studies),
                trials=bool(where.trials),
                brief=True,
                limit=where.limit + 1,
                before=RunId(where.before) if where.before else None,
            )
        )
        page = await with_readable_names(services.runs, found[: where.limit])
        latest = services.ingest.latest_metrics(await services.runs.latest_metrics([run.id for run in page]))
        counts = await services.runs.count_trials([run.id for run in page if run.spec.study is not None])
        rows = [
            to_run_out(
                run, ask.caller, latest=truncate_values(latest[run.id]), trials=_trial_counts(run, counts)
            )
            for run in page
        ]
        return RunsOut(rows, page[-1].id if len(found) > len(page) else None)

    async def find(ask: ApiRequest[RefQuery, Empty]) -> RunOut:
        """Find a run by its id, name, number or label.

        The reference is an id or a part of an id (6 characters or more), a name `user/project/12`,
        `project/12` or `12` of the caller's runs, a label (the newest run), or `last`. A bare number means
        the run of `project`, else the caller's only run with that number. 400 lists the projects if several
        runs match. 404 suggests close names.
        """
        found = await resolve_run(
            services.runs, ask.query.ref, user=ask.caller.user, project=ask.query.project
        )
        return await full_run(services, ask.caller, found)

    async def get(ask: ApiRequest[Empty, Empty]) -> RunOut:
        """Get a run with its newest attempts, what was decided about it last, latest metrics and progress."""
        return await full_run(services, ask.caller, await services.runs.get(RunId(ask.path["id"])))

    async def events(ask: ApiRequest[EventsQuery, Empty]) -> EventsOut:
        """List the scheduler's decisions and the changes of a run: promises, their breaches, preemptions,
        updates."""
        found = await services.runs.events(
            RunId(ask.path["id"]), after=ask.query.after, limit=ask.query.limit + 1
        )
        page = found[: ask.query.limit]
        return EventsOut(
            await _events_with_run_names(services, page),
            ask.query.after + len(page) if len(found) > len(page) else None,
        )

    async def attempts(ask: ApiRequest[PageQuery, Empty]) -> AttemptsOut:
        """List the attempts of a run."""
        page, after = paginate(
            await services.runs.attempts(RunId(ask.path["id"])),
            ask.query,
            key=lambda one: f"{one.number:010}",
        )
        return AttemptsOut(await _attempts_with_run_names(services, page), after)

    async def by_name(ask: ApiRequest[Empty, Empty]) -> RunOut:
        """Get a run by its name: the address that `hop run` prints."""
        name = RunName(
            check_name(ask.path["user"], subject="user"),
            check_name(ask.path["project"], subject="project"),
            int(ask.path["number"]),
        )
        run = await services.runs.find_by_name(name)
        if run is None:
            raise NotFound(f"there is no run {name}", hints=("list the runs with `hop ps --all`",))
        return await full_run(services, ask.caller, run)

    async def stop(ask: ApiRequest[Empty, StopIn]) -> RunOut:
        """Stop a run. A waiting run ends at once; the processes of a live run get SIGTERM and, after the
        grace period, SIGKILL.

        403 unless the caller is the run's user, administers its queue or one above it, owns the server, or is
        its study.
        """
        run_id = RunId(ask.path["id"])
        check_may_stop(
            ask.caller,
            await services.runs.get(run_id),
            await services.queue_cache.tree(),
            owner=services.queue_cache.owner,
        )
        await check_current_study_attempt(ask.caller, services.runs)
        grace = timedelta(seconds=ask.body.grace_s)
        await services.controller.stop(run_id, grace=grace, at_safe_point=ask.body.at_safe_point)
        return to_run_out(
            await with_readable_name(services.runs, await services.runs.get(run_id)), ask.caller
        )

    async def update(ask: ApiRequest[Empty, UpdateIn]) -> UpdatedOut:
        """Change a run: its name, tags and note at any time; queue, priority, time limit, resources and hold
        while it waits.

        The change becomes an event of the run, with its time, its user, old and new values. 400 as for a
        submission. 403 unless the caller is the user of the run, administers its queue or an ancestor, or
        owns the server; 403 also for a queue that the caller or the run's user may not use. 409 if the run no
        longer waits.
        """
        body = ask.body
        limit = None if body.time_limit_s is UNSET else body.time_limit_s
        wish = RunUpdate(
            queue=None if body.queue is None else QueueName(body.queue),
            priority=body.priority,
            time_limit_s=limit,
            remove_time_limit=body.time_limit_s is None,
            roles=None
            if body.roles is None
            else tuple(msgspec.convert(one, RoleSpec, from_attributes=True) for one in body.roles),
            held=body.hold,
            label=body.label,
            note=body.note,
            tags=body.tags,
            untag=body.untag,
        )
        run, done = await update_run(services, RunId(ask.path["id"]), wish, ask.caller)
        return UpdatedOut(to_run_out(await with_readable_name(services.runs, run), ask.caller), done)

    async def delete(ask: ApiRequest[DeleteQuery, Empty]) -> Empty:
        """Delete a run that is over or being synced, with its streams, its checkpoints and its trials.
        403 as for stopping it."""
        run_id = RunId(ask.path["id"])
        run = await services.runs.get(run_id)
        check_may_stop(ask.caller, run, await services.queue_cache.tree(), owner=services.queue_cache.owner)
        if ask.query.force and not (run.phase.is_final or run.is_being_synced):
            await services.controller.stop(run_id, grace=timedelta(seconds=1))
            if not await _wait_until_final(services, run_id):
                raise Conflict("the run does not end", hints=("try again in a while",))
        if run.spec.study is not None and (await services.runs.get(run_id)).phase.is_final:
            for trial in await list_trials(services.runs, run_id):
                if not trial.phase.is_final:
                    await services.controller.stop(trial.id, grace=timedelta(seconds=1))
                    if not await _wait_until_final(services, trial.id):
                        raise Conflict(
                            f"the trial {trial.name} does not end", hints=("try again in a while",)
                        )
                await _delete_run(services, trial.id)
        await _delete_run(services, run_id)
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
        Endpoint("GET", "/runs", list_runs, ListQuery, returns=RunsOut, auth="run"),
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


def _check_not_forked(spec: RunSpec) -> None:
    """Raises SpecError: the server itself writes down what a run was forked from.
    A trial resumes from the checkpoint of another, which is checked."""
    goes_on = spec.parent is not None and spec.resume is not None and spec.resume.run == spec.forked_from
    if spec.forked_from is not None and not goes_on:
        raise SpecError(
            "forked_from: this request cannot fork a run",
            hints=("use POST /runs/{id}/fork, or `hop fork RUN`",),
        )


async def _delete_run(services: Services, run_id: RunId) -> None:
    """Raises Conflict while it is not over, StorageFull; then nothing of it is gone."""
    await services.runs.delete(run_id)  # first: what cannot be written down must not cost the run its output
    services.ingest.forget(run_id)
    services.storage.invalidate_all()
    services.subscriptions.notify_state(run_id)
    try:
        await services.streams.delete(run_id)
        await asyncio.to_thread(remove_tree, Home(Path(services.home)).retained_of(run_id))
    except OSError as failed:
        log.warning(
            "files of the deleted run %s remain (%s); they are removed later",
            run_id,
            failed.strerror or failed,
        )


def _parse_tags(texts: Sequence[str]) -> dict[str, str]:
    """Raises SpecError for a tag that has two values: no run has both."""
    found: dict[str, str] = {}
    for one in texts:
        key, _, value = one.partition("=")
        if found.setdefault(key, value) != value:
            raise SpecError(f"tag: `{key}` is given with two values", hints=("name each tag once",))
    return found


def _trial_counts(
    run: Run, counts: Mapping[RunId, Mapping[RunPhase, int]]
) -> Mapping[RunPhase, int] | UnsetType:
    return UNSET if run.spec.study is None else counts.get(run.id, {})


async def submission_response(
    services: Services,
    request: ApiRequest[SubmitQuery, Any],
    run: Run,
    requested: RunSpec,
    *,
    not_inherited: Sequence[str] = (),
    removed_queue: str | None = None,
) -> RunOut:
    """The answer to a submission: the run, after its first scheduling turn where that is asked for, and what
    its user should know."""
    if request.query.plan and run.phase is RunPhase.QUEUED:
        await services.controller.wait_for_cycle(PLAN_TIMEOUT_S)
        run = await services.runs.get(run.id)
    more = {
        "not_inherited": not_inherited,
        "queue_gone": removed_queue,
        "pinned": await _foreign_pinned(services, run, requested),
    }
    return to_run_out(
        await with_readable_name(services.runs, run),
        request.caller,
        **{name: value for name, value in more.items() if value},
    )


async def _foreign_pinned(services: Services, run: Run, requested: RunSpec) -> list[PinnedOut]:
    """Of the datasets that were asked for without a version: those whose newest one somebody else pushed."""
    unnamed = {ref.name for ref in requested.datasets if not ref.version}
    found: list[PinnedOut] = []
    for ref in run.spec.datasets:
        if ref.name in unnamed:
            version = await services.datasets.version(ref.name, ref.version)
            if version.created_by != run.name.user:
                found.append(PinnedOut(ref.name, version.number, version.created_by, version.created_at))
    return found


async def full_run(services: Services, caller: Caller, run: Run) -> RunOut:
    """A run with everything that `GET /runs/{id}` tells."""
    run = await with_readable_name(services.runs, run)
    latest = services.ingest.latest_metrics(await services.runs.latest_metrics([run.id]))[run.id]
    live = services.ingest.get_live_run(run.id)
    told = live.progress if live is not None else None
    progress = ProgressOut(told.done, told.total, told.unit) if told is not None else None
    attempts, events = (
        (await services.runs.attempts(run.id))[-MAX_NEWEST_EVENTS:],
        await services.runs.events(run.id, limit=MAX_NEWEST_EVENTS, newest=True),
    )
    studies = [run.id] if run.spec.study is not None else []
    trials = _trial_counts(run, await services.runs.count_trials(studies) if studies else {})
    return to_run_out(
        run,
        caller,
        latest=latest,
        trials=trials,
        attempts=await _attempts_with_run_names(services, attempts),
        events=await _events_with_run_names(services, events),
        progress=progress,
        stopped_by=await _stopped_by(services, run) if run.stop_requested else None,
        machine_env=await services.runs.machine_env(run.id),
        elsewhere=list((await attempts_elsewhere(services, run)).values()),
        **await _fork_origin(services, run),
    )


async def _attempts_with_run_names(services: Services, attempts: Sequence[Attempt]) -> list[Attempt]:
    """With names of runs in what they make room for."""
    texts = await replace_run_ids(services.runs, [one.preempt_reason for one in attempts])
    return [replace(one, preempt_reason=text) for one, text in zip(attempts, texts, strict=True)]


async def _events_with_run_names(services: Services, events: Sequence[RunEvent]) -> list[RunEvent]:
    """With names of runs in their details."""
    texts = await replace_run_ids(services.runs, [one.detail for one in events])
    return [replace(one, detail=text) for one, text in zip(events, texts, strict=True)]


async def _fork_origin(services: Services, run: Run) -> Mapping[str, str | None]:
    """The name of what a fork was forked from."""
    origin = run.spec.forked_from
    return (
        {} if origin is None else {"forked_from_name": (await run_names(services.runs, [origin])).get(origin)}
    )


async def _stopped_by(services: Services, run: Run) -> str | None:
    """Who asked the run to end, first."""
    asked = await services.audit.list(AuditFilter(action=STOP_ACTION, target=run.id, outcome=Outcome.DONE))
    return asked[-1].user if asked else None


def _parse_phases(text: str | None) -> frozenset[RunPhase] | None:
    return None if text is None else frozenset(RunPhase(word) for word in text.split(","))


async def _wait_until_final(services: Services, run: RunId) -> bool:
    """Wait until a run that was asked to end is final."""
    with services.subscriptions.subscribe(run) as watch:
        while not watch.closed and not (await services.runs.get(run)).phase.is_final:
            if not await watch.wait(_STOP_TIMEOUT_S):
                return False
    return True

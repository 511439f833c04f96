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
from hopyard.controller.leftovers import remove_folder
from hopyard.domain.audit import AuditFilter, Outcome
from hopyard.domain.brief import brief_values
from hopyard.domain.ids import QueueName, RunId, RunName, check_name
from hopyard.domain.run import Attempt, RoleSpec, Run, RunEvent, RunPhase, RunSpec
from hopyard.errors import Conflict, Forbidden, NotFound, SpecError
from hopyard.interfaces.run_store import RunFilter
from hopyard.server.accept import accept
from hopyard.server.audit import STOP
from hopyard.server.auth import RUN_HINT, Caller
from hopyard.server.endpoint import Ask, Endpoint, Nothing
from hopyard.server.family import as_trial, trials_of
from hopyard.server.fields import (
    MAX_NAMES,
    RUN_ID,
    TEXT,
    Id,
    In,
    Key,
    Label,
    Name,
    Seconds,
    Text,
    Time,
    entire,
    some_of,
)
from hopyard.server.names import names_of, readable, readable_one, with_names
from hopyard.server.other_servers import attempts_elsewhere
from hopyard.server.pages import MOST_ROWS, Limit, PageQuery, page_of
from hopyard.server.parts import Parts
from hopyard.server.resolve import resolve
from hopyard.server.rights import check_live_study, check_may_end
from hopyard.server.update import Wish, update_run
from hopyard.server.wire import (
    MAX_ROLES,
    PinnedOut,
    ProgressOut,
    RoleIn,
    RunOut,
    RunsOut,
    SpecIn,
    run_out,
    to_spec,
)

PLAN_WAIT_S = 1.0
log = logging.getLogger("hopyard.server")
_STOP_WAIT_S = 60.0
NEWEST = 100  # attempts and events in the answer of a run
_MOST_TAGS = 32  # that one listing asks for


class SubmitQuery(In):
    plan: Annotated[
        int, Meta(ge=0, le=1, description="1 waits up to a second for the scheduler's word on the run")
    ] = 0


class SubmitIn(In):
    """A run to be made. `id` is chosen by the client, so that sending the same again is harmless."""

    spec: SpecIn
    id: Id | None = None


class OfflineIn(In):
    """A run that was recorded without a server. Its streams follow as those of attempt 1, rank 0."""

    spec: SpecIn
    id: Id
    started_at: Time


_Tag = Annotated[str, Meta(pattern=entire(r"[^=\x00]+=[^\x00]*"), max_length=1400)]


class ListQuery(In):
    phase: (
        Annotated[
            str, Meta(description="phases, separated by commas", max_length=256, pattern=some_of(RunPhase))
        ]
        | None
    ) = None
    user: Name | None = None
    project: Name | None = None
    label: Annotated[str, Meta(max_length=128, pattern=TEXT)] | None = None
    tag: Annotated[
        tuple[_Tag, ...],
        Meta(
            max_length=_MOST_TAGS, description="KEY=VALUE; given several times: runs that have all of these"
        ),
    ] = ()
    dataset: Name | None = None
    text: (
        Annotated[str, Meta(max_length=256, pattern=TEXT, description="a part of name, label or tag")] | None
    ) = None
    parent: Annotated[str, Meta(pattern=RUN_ID, description="only trials of this study")] | None = None
    studies: Annotated[int, Meta(ge=0, le=1, description="1: only runs that are studies")] = 0
    trials: Annotated[int, Meta(ge=0, le=1, description="0 leaves out the runs of trials")] = 1
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    before: Annotated[str, Meta(pattern=RUN_ID, description="only runs older than this one")] | None = None


class EventsQuery(In):
    """after: `next` of the page before."""

    limit: Limit = MOST_ROWS
    after: Annotated[
        int, Meta(ge=0, le=2**53, description="without the first so many: `next` of the page before")
    ] = 0


class EventsOut(Struct, frozen=True):
    """Oldest first. next: `after` of the next page; null at the end."""

    events: list[RunEvent]
    next: int | None


class AttemptsOut(Struct, frozen=True):
    """Oldest first. next: `after` of the next page; null at the end."""

    attempts: list[Attempt]
    next: str | None


class RefQuery(In):
    ref: Annotated[
        str, Meta(max_length=400, pattern=TEXT, description="id, part of one, name, number, label or `last`")
    ]
    project: (
        Annotated[
            Name,
            Meta(description="the one in which the caller works: a bare number is looked up there first"),
        ]
        | None
    ) = None


class DeleteQuery(In):
    force: Annotated[int, Meta(ge=0, le=1, description="1 stops it first, with a short grace")] = 0


class UpdateIn(In):
    """What is to be different; what is left out stays. queue, priority, time_limit_s (null: no limit), roles
    (as they are, with other resources) and hold are for runs that wait; label, note, tags (merged in) and
    untag for every run. hold: false releases a run that is held."""

    queue: Name | None = None
    priority: Annotated[int, Meta(ge=0, le=100)] | None = None
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


class StopIn(In):
    """at_safe_point: a script that has safe points leaves at its next one, with a checkpoint."""

    grace_s: Annotated[float, Meta(ge=0, le=3600.0)] = 10.0
    at_safe_point: bool = False


def run_endpoints(parts: Parts) -> Sequence[Endpoint[Any, Any]]:
    async def submit(ask: Ask[SubmitQuery, SubmitIn]) -> RunOut:
        """Submit a run.

        409 `missing_blobs` names what of code, requirements and diff has to be uploaded first. 400 says what
        in the spec cannot be, or what is missing on every node for it to fit. A study's own token submits
        runs of its trials, with the study as `parent`; they wait in its queue, as its user.
        """
        spec, user = to_spec(ask.body.spec), ask.caller.user
        if spec.study is not None and spec.study["continues"]:
            raise SpecError(
                "study.continues: a study is continued by another request",
                hints=("POST /runs/{id}/continue, or `hop search resume`",),
            )
        if spec.study is not None and spec.study["beginning"]:
            raise SpecError(
                "study.beginning: a study is forked by another request",
                hints=("POST /runs/{id}/fork, or `hop fork STUDY --checkpoint best`",),
            )
        _check_not_forked(spec)
        await check_live_study(ask.caller, parts.runs)
        if ask.caller.run is not None or spec.parent is not None:
            spec, user = await as_trial(parts.runs, ask.caller, spec, ask.body.id)
        run = await accept(parts, spec, user=user, run_id=ask.body.id)
        # it ended meanwhile, and looked for its trials
        if spec.parent is not None and (await parts.runs.get(spec.parent)).phase.final:
            await parts.controller.stop(run.id)
        return await submitted(parts, ask, run, spec)

    async def record_offline(ask: Ask[Nothing, OfflineIn]) -> RunOut:
        """Record a run that ended without a server: it counts as running until all of it has come.
        One with a clock that was ahead began now, at the latest."""
        started_at = min(ask.body.started_at.astimezone(UTC), parts.now())
        if started_at.timestamp() < _EARLIEST:
            raise SpecError("started_at: that is before 1970")
        spec = to_spec(ask.body.spec)
        if spec.parent is not None or spec.study is not None:
            raise SpecError("spec: a study and its trials are never recorded offline")
        _check_not_forked(spec)
        run = await accept(parts, spec, user=ask.caller.user, run_id=ask.body.id, offline=True, at=started_at)
        await parts.runs.record_synced(run.id, parts.now())
        return run_out(await parts.runs.get(run.id), ask.caller)

    async def list_runs(ask: Ask[ListQuery, Nothing]) -> RunsOut:
        """List runs, newest first, with the latest values of the first metrics.

        Rows are light: of a spec `env` and `environment.packages` are empty, of `params`, `tags`, `summary`,
        `latest` and commands the first come, and of a study what it is about. `GET /runs/{id}` has all of it.
        """
        where = ask.query
        if ask.caller.run is not None and where.parent != ask.caller.run:
            raise Forbidden(
                "a run's own token lists its trials only", hints=("`parent` names the run", RUN_HINT)
            )
        found = await parts.runs.list(
            RunFilter(
                phases=_phases(where.phase),
                user=where.user,
                project=where.project,
                label=where.label,
                tags=_tags(where.tag),
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
        page = await readable(parts.runs, found[: where.limit])
        latest = parts.ingest.latest(await parts.runs.latest_metrics([run.id for run in page]))
        counts = await parts.runs.count_trials([run.id for run in page if run.spec.study is not None])
        rows = [
            run_out(run, ask.caller, latest=brief_values(latest[run.id]), trials=_trials(run, counts))
            for run in page
        ]
        return RunsOut(rows, page[-1].id if len(found) > len(page) else None)

    async def find(ask: Ask[RefQuery, Nothing]) -> RunOut:
        """Find a run by what people call it.

        An id or a part of one (6 characters or more), a name `user/project/12`, `project/12` or `12` of the
        caller's own, a label (the newest), or `last`. A bare number means the run of `project`, else the only
        one of the caller with that number; 400 names the projects where there are several. 404 comes with
        close names.
        """
        found = await resolve(parts.runs, ask.query.ref, user=ask.caller.user, project=ask.query.project)
        return await whole(parts, ask.caller, found)

    async def get(ask: Ask[Nothing, Nothing]) -> RunOut:
        """Get a run with its newest attempts, what was decided about it last, latest metrics and progress."""
        return await whole(parts, ask.caller, await parts.runs.get(RunId(ask.path["id"])))

    async def events(ask: Ask[EventsQuery, Nothing]) -> EventsOut:
        """List what was decided about a run: promises, their breaches, requests to make room, changes."""
        found = await parts.runs.events(
            RunId(ask.path["id"]), after=ask.query.after, limit=ask.query.limit + 1
        )
        page = found[: ask.query.limit]
        return EventsOut(
            await _readable_events(parts, page),
            ask.query.after + len(page) if len(found) > len(page) else None,
        )

    async def attempts(ask: Ask[PageQuery, Nothing]) -> AttemptsOut:
        """List the attempts of a run."""
        page, after = page_of(
            await parts.runs.attempts(RunId(ask.path["id"])), ask.query, key=lambda one: f"{one.number:010}"
        )
        return AttemptsOut(await _readable_attempts(parts, page), after)

    async def by_name(ask: Ask[Nothing, Nothing]) -> RunOut:
        """Get a run by its name: the address that `hop run` prints."""
        name = RunName(
            check_name(ask.path["user"], what="user"),
            check_name(ask.path["project"], what="project"),
            int(ask.path["number"]),
        )
        run = await parts.runs.find_by_name(name)
        if run is None:
            raise NotFound(f"there is no run {name}", hints=("`hop ps --all` lists the runs",))
        return await whole(parts, ask.caller, run)

    async def stop(ask: Ask[Nothing, StopIn]) -> RunOut:
        """End a run: at once while it waits, else its processes get SIGTERM and, after the grace, SIGKILL.

        403 unless the caller is the run's user, administers its queue or one above it, owns the server, or is
        its study.
        """
        run_id = RunId(ask.path["id"])
        check_may_end(
            ask.caller, await parts.runs.get(run_id), await parts.queues.tree(), owner=parts.queues.owner
        )
        await check_live_study(ask.caller, parts.runs)
        grace = timedelta(seconds=ask.body.grace_s)
        await parts.controller.stop(run_id, grace=grace, at_safe_point=ask.body.at_safe_point)
        return run_out(await readable_one(parts.runs, await parts.runs.get(run_id)), ask.caller)

    async def update(ask: Ask[Nothing, UpdateIn]) -> UpdatedOut:
        """Change a run: its queue, priority, time limit, resources while it waits, and whether it is held;
        its name, tags and note always.

        What was changed, from what to what, when and by whom is an event of the run. 400 as for a submission.
        403 unless the caller is the run's user, administers its queue or one above it, or owns the server;
        and for a queue that the caller or the run's user may not use. 409 where the run waits no longer.
        """
        body = ask.body
        limit = None if body.time_limit_s is UNSET else body.time_limit_s
        wish = Wish(
            queue=None if body.queue is None else QueueName(body.queue),
            priority=body.priority,
            time_limit_s=limit,
            without_limit=body.time_limit_s is None,
            roles=None
            if body.roles is None
            else tuple(msgspec.convert(one, RoleSpec, from_attributes=True) for one in body.roles),
            hold=body.hold,
            label=body.label,
            note=body.note,
            tags=body.tags,
            untag=body.untag,
        )
        run, done = await update_run(parts, RunId(ask.path["id"]), wish, ask.caller)
        return UpdatedOut(run_out(await readable_one(parts.runs, run), ask.caller), done)

    async def delete(ask: Ask[DeleteQuery, Nothing]) -> Nothing:
        """Delete a run that is over, or is being synced, with its streams and checkpoints, and with those of
        its trials. 403 as for ending it."""
        run_id = RunId(ask.path["id"])
        run = await parts.runs.get(run_id)
        check_may_end(ask.caller, run, await parts.queues.tree(), owner=parts.queues.owner)
        if ask.query.force and not (run.phase.final or run.being_synced):
            await parts.controller.stop(run_id, grace=timedelta(seconds=1))
            if not await _ended(parts, run_id):
                raise Conflict("the run does not end", hints=("try again in a while",))
        if run.spec.study is not None and (await parts.runs.get(run_id)).phase.final:
            for trial in await trials_of(parts.runs, run_id):
                if not trial.phase.final:
                    await parts.controller.stop(trial.id, grace=timedelta(seconds=1))
                    if not await _ended(parts, trial.id):
                        raise Conflict(
                            f"the trial {trial.name} does not end", hints=("try again in a while",)
                        )
                await _delete(parts, trial.id)
        await _delete(parts, run_id)
        return Nothing()

    return [
        Endpoint(
            "POST",
            "/runs",
            submit,
            SubmitQuery,
            SubmitIn,
            RunOut,
            201,
            who="run",
            errors=(400, 404, 409, 507),
            rate="submissions",
            audit="run.submit",
        ),
        Endpoint("GET", "/runs", list_runs, ListQuery, returns=RunsOut, who="run"),
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
        Endpoint("GET", "/runs/{id}", get, returns=RunOut, who="study"),
        Endpoint("GET", "/runs/{id}/events", events, EventsQuery, returns=EventsOut, who="study"),
        Endpoint("GET", "/runs/{id}/attempts", attempts, PageQuery, returns=AttemptsOut, who="study"),
        Endpoint(
            "PATCH",
            "/runs/{id}",
            update,
            body=UpdateIn,
            returns=UpdatedOut,
            errors=(400, 409),
            audit="run.update",
        ),
        Endpoint("DELETE", "/runs/{id}", delete, DeleteQuery, returns=Nothing, errors=(409,)),
        Endpoint("POST", "/runs/{id}/stop", stop, body=StopIn, returns=RunOut, who="study"),
    ]


_EARLIEST = 0.0


def _check_not_forked(spec: RunSpec) -> None:
    """Raises SpecError: the server itself writes down what a run was forked from.
    A trial resumes from the checkpoint of another, which is checked."""
    goes_on = spec.parent is not None and spec.resume is not None and spec.resume.run == spec.forked_from
    if spec.forked_from is not None and not goes_on:
        raise SpecError(
            "forked_from: a run is forked by another request",
            hints=("POST /runs/{id}/fork, or `hop fork RUN`",),
        )


async def _delete(parts: Parts, run_id: RunId) -> None:
    """Raises Conflict while it is not over, StorageFull; then nothing of it is gone."""
    await parts.runs.delete(run_id)  # first: what cannot be written down must not cost the run its output
    parts.ingest.forget(run_id)
    parts.storage.forget()
    parts.hub.state_changed(run_id)
    try:
        await parts.streams.delete(run_id)
        await asyncio.to_thread(remove_folder, Home(Path(parts.home)).kept_of(run_id))
    except OSError as failed:
        log.warning(
            "something of the deleted run %s is still there (%s): it is swept later",
            run_id,
            failed.strerror or failed,
        )


def _tags(given: Sequence[str]) -> dict[str, str]:
    """Raises SpecError for a tag that has two values: no run has both."""
    found: dict[str, str] = {}
    for one in given:
        key, _, value = one.partition("=")
        if found.setdefault(key, value) != value:
            raise SpecError(f"tag: `{key}` is asked for with two values", hints=("name each tag once",))
    return found


def _trials(run: Run, counts: Mapping[RunId, Mapping[RunPhase, int]]) -> Mapping[RunPhase, int] | UnsetType:
    return UNSET if run.spec.study is None else counts.get(run.id, {})


async def submitted(
    parts: Parts,
    ask: Ask[SubmitQuery, Any],
    run: Run,
    asked: RunSpec,
    *,
    not_inherited: Sequence[str] = (),
    queue_gone: str | None = None,
) -> RunOut:
    """The answer to a submission: the run, after its first scheduling turn where that is asked for, and what
    its user should know."""
    if ask.query.plan and run.phase is RunPhase.QUEUED:
        await parts.controller.wait_planned(PLAN_WAIT_S)
        run = await parts.runs.get(run.id)
    more = {
        "not_inherited": not_inherited,
        "queue_gone": queue_gone,
        "pinned": await _pushed_by_others(parts, run, asked),
    }
    return run_out(
        await readable_one(parts.runs, run),
        ask.caller,
        **{name: value for name, value in more.items() if value},
    )


async def _pushed_by_others(parts: Parts, run: Run, asked: RunSpec) -> list[PinnedOut]:
    """Of the datasets that were asked for without a version: those whose newest one somebody else pushed."""
    unnamed = {ref.name for ref in asked.datasets if not ref.version}
    found: list[PinnedOut] = []
    for ref in run.spec.datasets:
        if ref.name in unnamed:
            version = await parts.datasets.version(ref.name, ref.version)
            if version.created_by != run.name.user:
                found.append(PinnedOut(ref.name, version.number, version.created_by, version.created_at))
    return found


async def whole(parts: Parts, caller: Caller, run: Run) -> RunOut:
    """A run with everything that `GET /runs/{id}` tells."""
    run = await readable_one(parts.runs, run)
    latest = parts.ingest.latest(await parts.runs.latest_metrics([run.id]))[run.id]
    live = parts.ingest.live(run.id)
    told = live.progress if live is not None else None
    progress = ProgressOut(told.done, told.total, told.unit) if told is not None else None
    attempts, events = (
        (await parts.runs.attempts(run.id))[-NEWEST:],
        await parts.runs.events(run.id, limit=NEWEST, newest=True),
    )
    studies = [run.id] if run.spec.study is not None else []
    trials = _trials(run, await parts.runs.count_trials(studies) if studies else {})
    return run_out(
        run,
        caller,
        latest=latest,
        trials=trials,
        attempts=await _readable_attempts(parts, attempts),
        events=await _readable_events(parts, events),
        progress=progress,
        stopped_by=await _stopped_by(parts, run) if run.stop_requested else None,
        machine_env=await parts.runs.machine_env(run.id),
        elsewhere=list((await attempts_elsewhere(parts, run)).values()),
        **await _origin(parts, run),
    )


async def _readable_attempts(parts: Parts, attempts: Sequence[Attempt]) -> list[Attempt]:
    """With names of runs in what they make room for."""
    texts = await with_names(parts.runs, [one.preempt_reason for one in attempts])
    return [replace(one, preempt_reason=text) for one, text in zip(attempts, texts, strict=True)]


async def _readable_events(parts: Parts, events: Sequence[RunEvent]) -> list[RunEvent]:
    """With names of runs in their details."""
    texts = await with_names(parts.runs, [one.detail for one in events])
    return [replace(one, detail=text) for one, text in zip(events, texts, strict=True)]


async def _origin(parts: Parts, run: Run) -> Mapping[str, str | None]:
    """The name of what a fork was forked from."""
    origin = run.spec.forked_from
    return {} if origin is None else {"forked_from_name": (await names_of(parts.runs, [origin])).get(origin)}


async def _stopped_by(parts: Parts, run: Run) -> str | None:
    """Who asked the run to end, first."""
    asked = await parts.audit.list(AuditFilter(action=STOP, target=run.id, outcome=Outcome.DONE))
    return asked[-1].user if asked else None


def _phases(text: str | None) -> frozenset[RunPhase] | None:
    return None if text is None else frozenset(RunPhase(word) for word in text.split(","))


async def _ended(parts: Parts, run: RunId) -> bool:
    """Wait until a run that was asked to end is final."""
    with parts.hub.watch(run) as watch:
        while not watch.closed and not (await parts.runs.get(run)).phase.final:
            if not await watch.wait(_STOP_WAIT_S):
                return False
    return True

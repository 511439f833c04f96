"""Endpoints for drivers and viewers of studies: the journal, and changes of trials that are separate runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from hopyard.config.limits import MAX_TRIALS
from hopyard.config.schemas.fields import (
    MAX_NAMES,
    RUN_ID,
    EnvKey,
    Hex,
    Id,
    LongText,
    Name,
    Priority,
    RequestModel,
    SecretName,
)
from hopyard.config.schemas.runs import EnvironmentIn, GitIn, ParamFormatIn
from hopyard.domain.access import Scope
from hopyard.domain.attempt import Exit
from hopyard.domain.ids import AttemptId, Digest, QueueName, RunId
from hopyard.domain.run import ResumeFrom, Run, RunPhase, RunSpec
from hopyard.domain.stream_limits import METRIC_STREAMS
from hopyard.errors import Conflict, Forbidden, SpecError
from hopyard.interfaces.run_store import RunFilter
from hopyard.interfaces.streams import StreamKey
from hopyard.server.endpoint import ApiRequest, BinaryBody, Endpoint
from hopyard.server.fork_study import to_environment, to_git, with_trial_code
from hopyard.server.masking import inherit_run, with_added_env
from hopyard.server.queue_cache import without_removed_queue
from hopyard.server.responses import encode
from hopyard.server.routes.runs import SubmitQuery, submission_response
from hopyard.server.schemas.runs import RunOut
from hopyard.server.services import Services
from hopyard.server.submit_run import submit_run

MAX_JOURNAL_BYTES = 16 * 1024 * 1024
MAX_METRIC_BYTES = 4 * 1024 * 1024
_MAX_TRIALS = 4096
_MAX_WAIT_S = 30.0


class JournalQuery(RequestModel):
    before: Annotated[int, Meta(ge=1, le=2**31, description="only of attempts before this attempt")] = 2**31
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0
    limit: Annotated[int, Meta(ge=0, le=MAX_JOURNAL_BYTES)] = MAX_JOURNAL_BYTES


class LookIn(RequestModel):
    """trials: the requested runs, each with the phase last seen. cursors: the known part of their report
    streams, `{"<attempt>:<rank>:<stream>": offset}`. wait_s: how long to wait if nothing has changed."""

    trials: Annotated[dict[Annotated[str, Meta(pattern=RUN_ID)], str | None], Meta(max_length=_MAX_TRIALS)]
    cursors: Annotated[dict[str, Annotated[int, Meta(ge=0, le=2**53)]], Meta(max_length=16 * _MAX_TRIALS)] = (
        msgspec.field(default_factory=dict)
    )
    wait_s: Annotated[float, Meta(ge=0, le=_MAX_WAIT_S)] = 0.0


class ContinueIn(RequestModel):
    """trials: the new total limit of trials, null for the previous one. code: a tree that replaces the
    study's code. git: its state. environment: null for that of the study. param_format: how the script of the
    trials takes its parameters, null for that of the study. queue, priority: of the new run and its trials,
    null for those of the study. trust: as for a fork. id: chosen by the client for safe retries."""

    trials: Annotated[int, Meta(ge=1, le=MAX_TRIALS)] | None = None
    code: Hex | None = None
    git: GitIn | None = None
    environment: EnvironmentIn | None = None
    param_format: ParamFormatIn | None = None
    queue: Name | None = None
    priority: Priority | None = None
    trust: bool = False
    env: Annotated[dict[EnvKey, LongText], Meta(max_length=MAX_NAMES)] | None = None
    secrets: Annotated[tuple[SecretName, ...], Meta(max_length=MAX_NAMES)] = ()
    id: Id | None = None


def study_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def journal(request: ApiRequest[JournalQuery, Any]) -> Response:
        """Read a study's journal: lines of JSON, over all of its attempts in order. `offset` counts over all
        attempts, so that a follower can continue where it stopped; `X-Length` is the total number of bytes.
        """
        run = await services.runs.get(RunId(request.path["id"]))
        position, end = 0, request.query.offset + request.query.limit
        await request.lease.reserve_response(request.query.limit)
        parts: list[bytes] = []
        for attempt in await services.runs.attempts(run.id):
            if attempt.number >= request.query.before:
                break
            length = (await services.streams.lengths(attempt.id, 0)).get("journal", 0)
            read_start, read_end = max(request.query.offset - position, 0), min(end - position, length)
            if read_start < read_end:
                parts.append(
                    await services.streams.read(
                        StreamKey(attempt.id, 0, "journal"), read_start, read_end - read_start
                    )
                )
            position += length
        return Response(
            b"".join(parts), media_type="application/x-ndjson", headers={"X-Length": str(position)}
        )

    async def poll_trials(request: ApiRequest[Any, LookIn]) -> Response:
        """Get the runs of a study's trials: their phases, and new bytes of their streams of metrics and
        events. The response is a line of JSON, followed by the segments' bytes: `{"trials": [{"id", "name",
        "phase", "exit", "attempt", "resumed_from_step"}], "segments": [{"attempt", "rank", "stream",
        "offset", "size"}], "more": bool}`. It is sent as soon as there is a change, at the latest after
        `wait_s`, and at once if no trials are requested. It has at most 4 MiB of segments; `more` is true if
        that was not enough."""
        study, body = (await services.runs.get(RunId(request.path["id"]))).id, request.body
        await request.lease.reserve_response(MAX_METRIC_BYTES)
        deadline = asyncio.get_running_loop().time() + body.wait_s
        with ExitStack() as stack:
            changed = asyncio.Event()
            for trial in body.trials:
                stack.enter_context(services.subscriptions.subscribe(RunId(trial), changed))
            while True:
                changed.clear()
                trials = await _list_requested_trials(services, study, body.trials)
                segments, data, has_more = await _new_report_bytes(services, trials, body.cursors)
                remaining_s = deadline - asyncio.get_running_loop().time()
                has_changes = (
                    segments
                    or any(body.trials[run.id] != run.phase for run in trials)
                    or len(trials) < len(body.trials)
                )
                if has_changes or not body.trials or remaining_s <= 0 or services.subscriptions.closed:
                    head = {
                        "trials": [_trial_fields(run) for run in trials],
                        "segments": segments,
                        "more": has_more,
                    }
                    return Response(
                        encode(head) + b"\n" + b"".join(data), media_type="application/octet-stream"
                    )
                try:
                    async with asyncio.timeout(remaining_s):
                        await changed.wait()
                except TimeoutError:
                    continue

    async def continue_study(request: ApiRequest[SubmitQuery, ContinueIn]) -> RunOut:
        """Continue a study that has ended, in a new run. The new run starts with the journal, trials and
        states of the previous run. It repeats only the work that was in progress when that run ended. 409 if
        the study has not ended, or has finished and no more trials are requested."""
        source = await services.runs.get(RunId(request.path["id"]))
        checkpoints = await services.runs.checkpoints(source.id)
        resume = (
            ResumeFrom(source.id, checkpoints[-1].step, checkpoints[-1].manifest)
            if checkpoints
            else source.spec.resume
        )
        source, dropped = await inherit_run(services, source, request.caller)
        inherited, removed_queue = without_removed_queue(await services.queue_cache.tree(), source.spec)
        source = replace(source, spec=inherited)
        spec = with_added_env(
            _continuation_spec(source, request.body, resume), request.body.env or {}, request.body.secrets
        )
        run = await submit_run(
            services,
            spec,
            user=request.caller.user,
            run_id=request.body.id,
            trust_checkpoint=request.body.trust,
        )
        not_inherited = [name for name in dropped if name not in {*(request.body.env or ()), *spec.secrets}]
        return await submission_response(
            services,
            request,
            run,
            spec,
            not_inherited=not_inherited,
            removed_queue=None if request.body.queue else removed_queue,
        )

    bytes_out = BinaryBody("a line of JSON, a line feed, then the segments' bytes")
    length = {"X-Length": "size of the journal in bytes"}
    return [
        Endpoint(
            "GET",
            "/runs/{id}/journal",
            journal,
            JournalQuery,
            returns=BinaryBody("lines of JSON", "application/x-ndjson", length),
            auth="study",
        ),
        Endpoint(
            "POST",
            "/runs/{id}/trials",
            poll_trials,
            body=LookIn,
            returns=bytes_out,
            auth="run",
            errors=(400, 404),
            scope=Scope.READ,
            unaudited_reason="it changes nothing",
        ),
        Endpoint(
            "POST",
            "/runs/{id}/continue",
            continue_study,
            SubmitQuery,
            ContinueIn,
            RunOut,
            201,
            errors=(400, 404, 409, 507),
            audit="study.continue",
        ),
    ]


def _continuation_spec(source: Run, change: ContinueIn, resume: ResumeFrom | None) -> RunSpec:
    """Raises SpecError if the run is not a study; Conflict if it cannot be continued."""
    spec, name = source.spec, source.name
    if spec.study is None:
        raise SpecError(f"{name} is a run, not a study", hints=("use `hop fork` to run it again",))
    if not source.phase.is_final:
        raise Conflict(
            f"{name} has not ended: it is {source.phase}",
            hints=(f"stop it with `hop stop {name}`; a crashed study resumes by itself",),
        )
    limit = spec.study.get("trials")
    if source.phase is RunPhase.SUCCEEDED and change.trials is None:
        hint = (
            "continue training of its best model with `hop fork STUDY --checkpoint best`"
            if spec.study.get("beginning")
            else "set a larger total of trials: `--trials N`"
        )
        raise Conflict(f"{name} already finished", hints=(hint,))
    if (
        source.phase is RunPhase.SUCCEEDED
        and limit is not None
        and change.trials is not None
        and change.trials <= limit
    ):
        raise Conflict(
            f"{name} already finished with {limit} trials; `--trials` must be greater (got {change.trials})",
            hints=(f"set the total number of trials: `--trials {limit + 1}` or more",),
        )
    study = {
        **spec.study,
        "continues": source.id,
        "trials": limit if change.trials is None else change.trials,
    }
    study = with_trial_code(
        study,
        change.code,
        git=change.git,
        environment=change.environment,
        param_format=change.param_format,
    )
    if change.code is not None:
        spec = replace(spec, code=Digest(change.code), git=to_git(change.git))
    if change.environment is not None:
        spec = replace(spec, environment=to_environment(change.environment))
    if change.queue is not None:
        spec = replace(spec, queue=QueueName(change.queue))
    if change.priority is not None:
        spec = replace(spec, priority=change.priority)
    return replace(spec, study=study, forked_from=source.id, parent=None, resume=resume)


async def _list_requested_trials(
    services: Services, study: RunId, requested: Mapping[str, str | None]
) -> list[Run]:
    """Returns the requested runs that exist. Raises Forbidden for a run that is not a trial of the study."""
    if not requested:
        return []
    runs = list(
        await services.runs.list(
            RunFilter(ids=frozenset(map(RunId, requested)), limit=len(requested), brief=True)
        )
    )
    for run in runs:
        if run.spec.parent != study:
            raise Forbidden(f"run {run.name} is not a trial of this study")
    return sorted(runs, key=lambda run: run.id)


async def _new_report_bytes(
    services: Services, trials: Sequence[Run], cursors: Mapping[str, int]
) -> tuple[list[dict[str, Any]], list[bytes], bool]:
    """Returns the segments and bytes of the metric streams beyond the cursors, and whether there are more.
    The phases were read before, so that the streams of an ended run are complete."""
    segments: list[dict[str, Any]] = []
    parts: list[bytes] = []
    remaining, has_more = MAX_METRIC_BYTES, False
    for run in trials:
        async for key, length in _report_streams(services, run):
            offset = cursors.get(f"{key.attempt}:{key.rank}:{key.name}", 0)
            has_more |= length - offset > remaining
            if offset >= length or remaining <= 0:
                continue
            data = await services.streams.read(key, offset, min(remaining, length - offset))
            remaining -= len(data)
            segments.append(
                {
                    "attempt": key.attempt,
                    "rank": key.rank,
                    "stream": key.name,
                    "offset": offset,
                    "size": len(data),
                }
            )
            parts.append(data)
    return segments, parts, has_more


async def _report_streams(services: Services, run: Run) -> AsyncIterator[tuple[StreamKey, int]]:
    """Yields the streams of a run that a study reads, in order, with their lengths. The events of rank 0 come
    first: they show how the reports of a script are counted."""
    newest = run.attempt.number if run.attempt is not None else 0
    for number in range(1, newest + 1):
        attempt = AttemptId(f"{run.id}.{number}")
        for rank in range(run.spec.size):
            lengths = await services.streams.lengths(attempt, rank)
            for name in ("events", *METRIC_STREAMS) if rank == 0 else METRIC_STREAMS:
                if name in lengths:
                    yield StreamKey(attempt, rank, name), lengths[name]


def _trial_fields(run: Run) -> dict[str, Any]:
    attempt = run.attempt
    exit: Exit | None = run.exit
    return {
        "id": run.id,
        "name": str(run.name),
        "phase": run.phase,
        "exit": exit,
        "attempt": None if attempt is None else attempt.id,
        "resumed_from_step": None if attempt is None else attempt.resumed_from_step,
    }

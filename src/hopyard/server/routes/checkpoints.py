"""Checkpoints of a run, and forks that start from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from hopyard.config.limits import MAX_EPOCHS
from hopyard.config.schemas.fields import (
    MAX_NAMES,
    EnvKey,
    Hex,
    Id,
    Int64,
    Key,
    Label,
    LimitBytes,
    LongText,
    Name,
    ParamField,
    Priority,
    RequestModel,
    Seconds,
    SecretName,
    Text,
)
from hopyard.config.schemas.runs import MAX_ROLES, EnvironmentIn, GitIn, ParamFormatIn, RoleIn, TopologyIn
from hopyard.controller.checkpoint_retention import retained_steps, run_datasets
from hopyard.domain.best_checkpoint import best_checkpoint
from hopyard.domain.checkpoint import Checkpoint, fork_candidates
from hopyard.domain.gang import Topology
from hopyard.domain.ids import Digest, QueueName, RunId
from hopyard.domain.metric_line import check_metric_lines
from hopyard.domain.param_format import ParamFormat, without_added_options
from hopyard.domain.run import ResumeFrom as Resume
from hopyard.domain.run import RoleSpec, Run, RunSpec
from hopyard.domain.script_tags import without_script_tags
from hopyard.errors import Conflict, MissingBlobs, NotFound, SpecError
from hopyard.server.authorization import check_owns_run
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.fork_study import (
    BEST_CHECKPOINT,
    fork_study,
    to_environment,
    to_git,
    with_trial_code,
)
from hopyard.server.live_params import with_live_params
from hopyard.server.masking import inherit_run, with_added_env
from hopyard.server.pages import PageQuery
from hopyard.server.queue_cache import without_removed_queue
from hopyard.server.routes.runs import SubmitQuery, submission_response
from hopyard.server.run_evaluation import check_evaluation, record_evaluation
from hopyard.server.schemas.checkpoints import CheckpointOut, to_checkpoint_out
from hopyard.server.schemas.runs import RunOut
from hopyard.server.services import Services
from hopyard.server.submit_run import submit_run

_MAX_VERIFIED_BYTES = 2**30  # a fork reads a checkpoint up to this size completely before it starts


class CheckpointsOut(Struct, frozen=True):
    """In the order in which they were saved. next: `after` of the next page; null at the end."""

    checkpoints: Sequence[CheckpointOut]
    next: str | None


class KeepQuery(RequestModel):
    kept: Annotated[int, Meta(ge=0, le=1, description="0: retention may delete it again")] = 1


class ForkIn(RequestModel):
    """The changes of a fork; everything else is taken from the run. params, env, secrets and tags are merged
    in; null keeps the values. removed_params: names of parameters that the fork does not inherit. A fork by
    another user inherits no values of `env`, and only those `secrets` whose names that user has secrets for.

    param_format: how the script takes its parameters, or that of a study's trials; null takes that of the
    run.

    code, git: other code, and its git state; null takes those of the run. environment: what its interpreter
    has by now, or another one; null takes that of the run.

    checkpoint: null starts from the beginning, "newest", "best" or a step resumes there; "best" has the best
    value of the metric of the run. For a study whose trials
    hop, "best" continues training of its best model in a study of one trial. Its params are those of the
    trial, and it is trained for `epochs` more (null: as many as in the study); null repeats the study. trust:
    allows reading all of another user's checkpoint, which may run their code. files: begins with the files
    that the next attempt of the run would begin with, its own checkpoints; of another user's run with `trust`
    only. live_params: has the parameters that users set while the run was live. A fork that starts from a
    checkpoint or with files always has them. id: chosen by the client for safe retries.
    """

    params: Annotated[dict[Key, ParamField], Meta(max_length=MAX_NAMES)] | None = None
    removed_params: Annotated[tuple[Key, ...], Meta(max_length=MAX_NAMES)] = ()
    env: Annotated[dict[EnvKey, LongText], Meta(max_length=MAX_NAMES)] | None = None
    secrets: Annotated[tuple[SecretName, ...], Meta(max_length=MAX_NAMES)] = ()
    tags: Annotated[dict[Key, Text], Meta(max_length=MAX_NAMES)] | None = None
    label: Label | None = None
    time_limit_s: Seconds | None = None
    queue: Name | None = None
    priority: Priority | None = None
    preemptible: bool | None = None
    topology: TopologyIn | None = None
    max_output_bytes: LimitBytes | None = None
    max_metrics_bytes: LimitBytes | None = None
    metric_lines: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()
    project: Name | None = None
    roles: Annotated[tuple[RoleIn, ...], Meta(min_length=1, max_length=MAX_ROLES)] | None = None
    checkpoint: Literal["newest", "best"] | Int64 | None = None
    epochs: Annotated[int, Meta(ge=1, le=MAX_EPOCHS)] | None = None
    code: Hex | None = None
    git: GitIn | None = None
    environment: EnvironmentIn | None = None
    param_format: ParamFormatIn | None = None
    trust: bool = False
    files: bool = False
    live_params: bool = False
    id: Id | None = None


def checkpoint_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def list_checkpoints(request: ApiRequest[PageQuery, Empty]) -> CheckpointsOut:
        """List the checkpoints of a run in the order of saving.
        Checkpoints with damaged or missing blobs are marked and not used. `best` marks the one with the best
        value of the metric of the run.

        409 if the last checkpoint of the previous page was removed meanwhile: list them again.
        """
        run = await services.runs.get(RunId(request.path["id"]))
        checkpoints = await services.runs.checkpoints(run.id, damaged=True, own=True)
        best = best_checkpoint(checkpoints, await run_datasets(services.datasets, run))
        reasons = await retained_steps(
            services.runs, services.datasets, run, retained_count=services.keep_checkpoints
        )
        page, after = _select_page(checkpoints, request.query)
        return CheckpointsOut(
            [
                to_checkpoint_out(
                    replace(
                        checkpoint,
                        best=checkpoint is best,
                        damaged=checkpoint.damaged
                        or bool(await services.manifests.known_damage(checkpoint.manifest)),
                    ),
                    () if checkpoint.damaged else reasons[bool(checkpoint.path)].get(checkpoint.step, ()),
                )
                for checkpoint in page
            ],
            after,
        )

    async def keep(request: ApiRequest[KeepQuery, Empty]) -> CheckpointsOut:
        """Exempt a checkpoint from retention. Returns the checkpoints of this step.
        403 unless the caller is the user of the run or the owner of the server."""
        run, step = RunId(request.path["id"]), int(request.path["step"])
        check_owns_run(request.caller, await services.runs.get(run), owner=services.queue_cache.owner)
        saved = await services.runs.checkpoints(run, own=True)
        if not any(checkpoint.step == step for checkpoint in saved):
            raise NotFound(f"the run has no checkpoint of step {step}")
        await services.runs.set_checkpoint_kept(run, step, bool(request.query.kept))
        saved = await services.runs.checkpoints(run, own=True)
        changed = [checkpoint for checkpoint in saved if checkpoint.step == step]
        return CheckpointsOut([to_checkpoint_out(checkpoint) for checkpoint in changed], None)

    async def delete(request: ApiRequest[Empty, Empty]) -> Empty:
        """Delete the checkpoints of a step.
        403 unless the caller is the user of the run or the owner of the server.
        409 for the newest checkpoint of a live run, and for those from which its attempts resumed."""
        run, step = await services.runs.get(RunId(request.path["id"])), int(request.path["step"])
        check_owns_run(request.caller, run, owner=services.queue_cache.owner)
        checkpoints = await services.runs.checkpoints(run.id, damaged=True, own=True)
        if not any(checkpoint.step == step for checkpoint in checkpoints):
            raise NotFound(f"the run has no checkpoint of step {step}", hints=(_steps_hint(checkpoints),))
        if not run.phase.is_final:
            attempts = await services.runs.attempts(run.id)
            newest = [checkpoint.step for checkpoint in checkpoints if not checkpoint.path][-1:]
            newest += [checkpoint.step for checkpoint in checkpoints if checkpoint.path][-1:]
            if step in {*newest, *(attempt.resumed_from_step for attempt in attempts)}:
                raise Conflict(
                    f"run {run.name} can resume from the checkpoint of step {step}",
                    hints=("delete it after the run has ended",),
                )
        await services.runs.delete_checkpoints(run.id, [step])
        return Empty()

    async def fork(request: ApiRequest[SubmitQuery, ForkIn]) -> RunOut:
        """Submit a run with the same code, data versions and environment as another one.

        The fork of a study searches again, or with `checkpoint: "best"` continues training of its best model.
        """
        source, change = await services.runs.get(RunId(request.path["id"])), request.body
        if change.epochs is not None and (change.checkpoint != BEST_CHECKPOINT or source.spec.study is None):
            raise SpecError(
                "epochs: applies only to the best model of a study",
                hints=('add `checkpoint: "best"`, or change the parameter of a script: `-p epochs=N`',),
            )
        if source.offline and source.spec.code is None:
            hint = "run it again with `hop run SCRIPT` in the folder of the script"
            raise Conflict(
                f"run {source.name} was recorded offline, without its code: it cannot be forked",
                hints=(hint,),
            )
        source, dropped = await inherit_run(services, source, request.caller)
        inherited, removed_queue = without_removed_queue(await services.queue_cache.tree(), source.spec)
        logged = await services.runs.script_tags(source.id)
        source = replace(source, spec=without_script_tags(inherited, logged))
        if source.spec.study is None:
            chosen = await _find_checkpoint(services, source, change.checkpoint)
            resume = None
            if chosen is not None:
                resume = Resume(source.id, chosen.step, chosen.manifest)
            spec = _fork_spec(
                await _with_live_params(services, source, change, resume),
                change,
                None if chosen is not None and chosen.path else resume,
            )
            added = spec.params.keys() - source.spec.params.keys() - (change.params or {}).keys()
            spec = replace(spec, param_format=without_added_options(spec.param_format, added))
            if chosen is not None and chosen.path and not change.files:
                _check_trusted(source, request.caller.user, change)
                continued = source.continued_by_next()
                spec = replace(spec, initial_folder=chosen.manifest, continued_runs=continued)
            elif change.files:
                kept = _kept_files(source, request.caller.user, change)
                spec = replace(spec, initial_folder=kept, continued_runs=source.continued_by_next())
        else:
            fork = await fork_study(
                services,
                source,
                checkpoint=change.checkpoint,
                params=change.params or {},
                epochs=change.epochs,
            )
            spec = replace(
                _fork_spec(
                    source, msgspec.structs.replace(change, params=None, param_format=None), fork.resume
                ),
                study=with_trial_code(
                    fork.study,
                    change.code,
                    git=change.git,
                    environment=change.environment,
                    param_format=change.param_format,
                ),
            )
            # the label identifies the study, whose best model other forks may continue as well
            if change.checkpoint == BEST_CHECKPOINT:
                spec = replace(spec, label=change.label or "")
        spec = with_added_env(spec, change.env or {}, change.secrets)
        await check_evaluation(services, request.caller, spec)
        run = await submit_run(
            services, spec, user=request.caller.user, run_id=request.body.id, trust_checkpoint=change.trust
        )
        await record_evaluation(services, run)
        set_names = {*(change.env or ()), *spec.secrets}
        return await submission_response(
            services,
            request,
            run,
            spec,
            not_inherited=[name for name in dropped if name not in set_names],
            removed_queue=None if change.queue else removed_queue,
        )

    return [
        Endpoint(
            "GET",
            "/runs/{id}/checkpoints",
            list_checkpoints,
            PageQuery,
            returns=CheckpointsOut,
            auth="study",
            errors=(409,),
        ),
        Endpoint(
            "POST",
            "/runs/{id}/checkpoints/{step}/keep",
            keep,
            KeepQuery,
            returns=CheckpointsOut,
            audit="checkpoint.keep",
        ),
        Endpoint(
            "DELETE",
            "/runs/{id}/checkpoints/{step}",
            delete,
            returns=Empty,
            errors=(409,),
            audit="checkpoint.delete",
        ),
        Endpoint(
            "POST", "/runs/{id}/fork", fork, SubmitQuery, ForkIn, RunOut, 201, errors=(400, 404, 409, 507)
        ),
    ]


def _steps_hint(checkpoints: Sequence[Checkpoint]) -> str:
    steps = list(dict.fromkeys(str(checkpoint.step) for checkpoint in reversed(checkpoints)))
    return f"it has the steps {', '.join(steps[:20])}" if steps else "it has none"


def _select_page(
    checkpoints: Sequence[Checkpoint], query: PageQuery
) -> tuple[Sequence[Checkpoint], str | None]:
    """Returns the page, and the `after` of the next one."""
    start = 0
    if query.after is not None:
        start = next(
            (
                position
                for position, checkpoint in enumerate(checkpoints, 1)
                if _cursor(checkpoint) == query.after
            ),
            0,
        )
        if not start:
            raise Conflict(
                "the last checkpoint of the previous page was removed",
                hints=("list the checkpoints again from the first page",),
            )
    page = checkpoints[start : start + query.limit]
    return page, _cursor(page[-1]) if start + len(page) < len(checkpoints) else None


def _cursor(checkpoint: Checkpoint) -> str:
    return ":".join(map(str, (checkpoint.attempt, checkpoint.rank, checkpoint.step, checkpoint.path)))


async def _with_live_params(services: Services, source: Run, change: ForkIn, resume: Resume | None) -> Run:
    """Returns the run with the parameters that its users set while it ran: those that held at a given or the
    best checkpoint, or the last ones for the newest checkpoint or files. A fork from the beginning gets them
    with `live_params` only."""
    if resume is None and not change.files and not change.live_params:
        return source
    return await with_live_params(services, source, None if change.checkpoint == "newest" else resume)


def _fork_spec(source: Run, change: ForkIn, resume: Resume | None) -> RunSpec:
    spec = source.spec
    return replace(
        spec,
        params={
            **{k: v for k, v in spec.params.items() if k not in change.removed_params},
            **(change.params or {}),
        },
        tags={**spec.tags, **(change.tags or {})},
        label=spec.label if change.label is None else change.label,
        time_limit_s=spec.time_limit_s if change.time_limit_s is None else change.time_limit_s,
        queue=spec.queue if change.queue is None else QueueName(change.queue),
        priority=spec.priority if change.priority is None else change.priority,
        preemptible=spec.preemptible if change.preemptible is None else change.preemptible,
        topology=spec.topology
        if change.topology is None
        else msgspec.convert(change.topology, Topology, from_attributes=True),
        roles=spec.roles if change.roles is None else tuple(_to_role(role) for role in change.roles),
        code=spec.code if change.code is None else Digest(change.code),
        git=spec.git if change.code is None else to_git(change.git),
        environment=spec.environment if change.environment is None else to_environment(change.environment),
        param_format=spec.param_format
        if change.param_format is None
        else msgspec.convert(change.param_format, ParamFormat, from_attributes=True),
        forked_from=source.id,
        parent=None,
        max_output_bytes=change.max_output_bytes or spec.max_output_bytes,
        max_metrics_bytes=change.max_metrics_bytes or spec.max_metrics_bytes,
        metric_lines=check_metric_lines(change.metric_lines, what="metric_lines") or spec.metric_lines,
        project=change.project or spec.project,
        resume=resume,
        initial_folder=None,
        continued_runs=(),
    )


def _check_trusted(source: Run, user: str, change: ForkIn) -> None:
    if source.name.user != user and not change.trust:
        raise SpecError(
            f"files: {source.name} is a run of another user, and its files may run that user's code",
            hints=("set `trust`, or use `--trust`, if you trust that user",),
        )


def _kept_files(source: Run, user: str, change: ForkIn) -> Digest:
    _check_trusted(source, user, change)
    if source.run_folder is None:
        raise NotFound(
            f"run {source.name} has kept no files",
            hints=(
                "a run keeps its $HOPYARD_RUN_DIR, and the files of its working folder that `--checkpoints` "
                "names",
            ),
        )
    return source.run_folder


def _to_role(role: RoleIn) -> RoleSpec:
    return msgspec.convert(role, RoleSpec, from_attributes=True)


async def _find_checkpoint(services: Services, source: Run, requested: str | int | None) -> Checkpoint | None:
    """Returns the checkpoint that a fork begins with: the newest readable one of `fork_candidates`, or the
    best one of all."""
    if requested is None:
        return None
    all_checkpoints = await services.runs.checkpoints(source.id, damaged=True, own=True)
    if requested == BEST_CHECKPOINT and all_checkpoints:
        best = best_checkpoint(all_checkpoints, await run_datasets(services.datasets, source))
        if best is None:
            raise SpecError(
                f"checkpoint: no metric decides which checkpoint of {source.name} is the best",
                hints=(
                    'log a metric and name it: `hop.loop(…, keep_best="val_loss")`',
                    "set `newest` or a step: `hop checkpoint ls RUN` lists them",
                ),
            )
        candidates: Sequence[Checkpoint] = [best]
    else:
        candidates = fork_candidates(all_checkpoints, requested if isinstance(requested, int) else None)
    newest, damaged = None, set[int]()
    for checkpoint in reversed(candidates):
        if not checkpoint.damaged and checkpoint.step not in damaged:
            if not await _is_unavailable(services, source, checkpoint):
                newest = checkpoint
                break
            damaged.add(checkpoint.step)
    if newest is None:
        if damaged or any(checkpoint.damaged for checkpoint in candidates):
            raise NotFound(
                f"run {source.name} has no such readable checkpoint",
                hints=("list its readable and damaged checkpoints with `hop info RUN`",),
            )
        readable = [checkpoint for checkpoint in all_checkpoints if not checkpoint.damaged]
        if not readable:
            hint = "save checkpoints in the script with `hop.bind` and `hop.loop`, or with `hop.save`"
            raise NotFound(f"run {source.name} has no checkpoint", hints=(hint,))
        steps = ", ".join(str(step) for step in dict.fromkeys(checkpoint.step for checkpoint in readable))
        raise NotFound(
            f"run {source.name} has no checkpoint of step {requested}",
            hints=(f"choose one of the steps {steps}",),
        )
    return newest


async def _is_unavailable(services: Services, source: Run, checkpoint: Checkpoint) -> bool:
    """Returns whether a checkpoint cannot be read any more; it is then marked as damaged. Of a large
    checkpoint only the manifest is read, and its blobs must exist."""
    error = ""
    if checkpoint.size_bytes <= _MAX_VERIFIED_BYTES:
        error = await services.manifests.verify(checkpoint.manifest)
    else:
        try:
            await services.manifests.require_complete(checkpoint.manifest, subject="checkpoint")
        except MissingBlobs as missing_error:
            (await services.remote_blobs.find_missing(map(Digest, missing_error.digests))).check_reachable()
            error = missing_error.message
    if not error:
        return False
    await services.runs.mark_damaged(
        source.id,
        checkpoint.step,
        f"the checkpoint of step {checkpoint.step} cannot be read ({error})",
        now=services.now(),
    )
    services.subscriptions.notify_state(source.id)
    return True

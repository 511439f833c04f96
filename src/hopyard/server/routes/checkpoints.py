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
from hopyard.config.schemas.runs import MAX_ROLES, RoleIn, TopologyIn
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.gang import Topology
from hopyard.domain.ids import Digest, QueueName, RunId
from hopyard.domain.run import ResumeFrom as Resume
from hopyard.domain.run import RoleSpec, Run, RunSpec
from hopyard.errors import Conflict, MissingBlobs, NotFound, SpecError
from hopyard.server.authorization import check_owns_run
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.fork_study import BEST_CHECKPOINT, fork_study
from hopyard.server.masking import inherit_run, with_added_env
from hopyard.server.pages import PageQuery
from hopyard.server.queue_cache import without_removed_queue
from hopyard.server.routes.runs import SubmitQuery, submission_response
from hopyard.server.schemas.runs import RunOut
from hopyard.server.services import Services
from hopyard.server.submit_run import submit_run

_MAX_VERIFIED_BYTES = 2**30  # of a checkpoint that is read whole before a fork begins with it


class CheckpointsOut(Struct, frozen=True):
    """In the order in which they were saved. next: `after` of the next page; null at the end."""

    checkpoints: Sequence[Checkpoint]
    next: str | None


class KeepQuery(RequestModel):
    kept: Annotated[int, Meta(ge=0, le=1, description="0: retention may delete it again")] = 1


class ForkIn(RequestModel):
    """What the fork changes; everything else is the run's. params, env, secrets and tags are merged in; null
    keeps what is there. Another user's fork takes over no values of `env`, and of `secrets` the names that
    its user has secrets for.

    checkpoint: null starts afresh, "newest" or a step goes on from there. Of a study whose trials hop, "best"
    trains its best model on, in a study of one trial: params change that of its trial, and it is trained for
    `epochs` more (null: as many as the study's); null does the study once more. trust: the checkpoint is
    another user's, and all of it may be read, which may run code of theirs. id: chosen by the client for safe
    retries.
    """

    params: Annotated[dict[Key, ParamField], Meta(max_length=MAX_NAMES)] | None = None
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
    project: Name | None = None
    roles: Annotated[tuple[RoleIn, ...], Meta(min_length=1, max_length=MAX_ROLES)] | None = None
    checkpoint: Literal["newest", "best"] | Int64 | None = None
    epochs: Annotated[int, Meta(ge=1, le=MAX_EPOCHS)] | None = None
    trust: bool = False
    id: Id | None = None


def checkpoint_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def list_checkpoints(ask: ApiRequest[PageQuery, Empty]) -> CheckpointsOut:
        """List the checkpoints of a run in the order of saving.
        Checkpoints with damaged or missing blobs are marked and not used.

        409 if the last checkpoint of the previous page was removed meanwhile: list them again.
        """
        page = _to_page(await services.runs.checkpoints(RunId(ask.path["id"]), damaged=True), ask.query)
        return CheckpointsOut(
            [
                replace(one, damaged=one.damaged or bool(await services.manifests.known_damage(one.manifest)))
                for one in page.checkpoints
            ],
            page.next,
        )

    async def keep(ask: ApiRequest[KeepQuery, Empty]) -> CheckpointsOut:
        """Exempt a checkpoint from retention. Returns the checkpoints of this step.
        403 unless the caller is the user of the run or the owner of the server."""
        run, step = RunId(ask.path["id"]), int(ask.path["step"])
        check_owns_run(ask.caller, await services.runs.get(run), owner=services.queue_cache.owner)
        if not any(checkpoint.step == step for checkpoint in await services.runs.checkpoints(run)):
            raise NotFound(f"the run has no checkpoint of step {step}")
        await services.runs.set_checkpoint_kept(run, step, bool(ask.query.kept))
        return CheckpointsOut([one for one in await services.runs.checkpoints(run) if one.step == step], None)

    async def fork(ask: ApiRequest[SubmitQuery, ForkIn]) -> RunOut:
        """Submit a run with the same code, data versions and environment as another one.

        The fork of a study searches again, or with `checkpoint: "best"` continues training of its best model.
        """
        source, change = await services.runs.get(RunId(ask.path["id"])), ask.body
        if change.epochs is not None and change.checkpoint != BEST_CHECKPOINT:
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
        source, dropped = await inherit_run(services, source, ask.caller)
        inherited, gone = without_removed_queue(await services.queue_cache.tree(), source.spec)
        source = replace(source, spec=inherited)
        if source.spec.study is None:
            spec = _fork_spec(
                source, change, await _find_resume_checkpoint(services, source, change.checkpoint)
            )
        else:
            fork = await fork_study(
                services,
                source,
                checkpoint=change.checkpoint,
                params=change.params or {},
                epochs=change.epochs,
            )
            spec = replace(
                _fork_spec(source, msgspec.structs.replace(change, params=None), fork.resume),
                study=fork.study,
            )
            # by its label the study is found, whose best others train on, too
            if change.checkpoint == BEST_CHECKPOINT:
                spec = replace(spec, label=change.label or "")
        spec = with_added_env(spec, change.env or {}, change.secrets)
        run = await submit_run(
            services, spec, user=ask.caller.user, run_id=ask.body.id, trust_checkpoint=change.trust
        )
        given = {*(change.env or ()), *spec.secrets}
        return await submission_response(
            services,
            ask,
            run,
            spec,
            not_inherited=[name for name in dropped if name not in given],
            removed_queue=None if change.queue else gone,
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
            "POST", "/runs/{id}/fork", fork, SubmitQuery, ForkIn, RunOut, 201, errors=(400, 404, 409, 507)
        ),
    ]


def _to_page(checkpoints: Sequence[Checkpoint], query: PageQuery) -> CheckpointsOut:
    begin = 0
    if query.after is not None:
        begin = next((at for at, one in enumerate(checkpoints, 1) if _cursor(one) == query.after), 0)
        if not begin:
            raise Conflict(
                "the last checkpoint of the previous page is gone",
                hints=("list the checkpoints again from the first page",),
            )
    page = checkpoints[begin : begin + query.limit]
    return CheckpointsOut(page, _cursor(page[-1]) if begin + len(page) < len(checkpoints) else None)


def _cursor(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.attempt}:{checkpoint.rank}:{checkpoint.step}"


def _fork_spec(source: Run, change: ForkIn, resume: Resume | None) -> RunSpec:
    spec = source.spec
    return replace(
        spec,
        params={**spec.params, **(change.params or {})},
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
        forked_from=source.id,
        parent=None,
        max_output_bytes=change.max_output_bytes or spec.max_output_bytes,
        max_metrics_bytes=change.max_metrics_bytes or spec.max_metrics_bytes,
        project=change.project or spec.project,
        resume=resume,
    )


def _to_role(role: RoleIn) -> RoleSpec:
    return msgspec.convert(role, RoleSpec, from_attributes=True)


async def _find_resume_checkpoint(
    services: Services, source: Run, requested: str | int | None
) -> Resume | None:
    if requested is None:
        return None
    if requested == BEST_CHECKPOINT:
        hint = "set `newest` or a step: `hop info RUN` lists the checkpoints"
        raise SpecError(
            f"checkpoint: {source.name} is not a study, so it has no best checkpoint",
            hints=(hint,),
        )
    every = await services.runs.checkpoints(source.id, damaged=True)
    saved = [one for one in every if not one.damaged]
    found, damaged = None, set[int]()
    for one in reversed(saved):
        if requested in ("newest", one.step) and one.step not in damaged:
            if not await _is_unavailable(services, source, one):
                found = one
                break
            damaged.add(one.step)
    if found is None:
        if damaged or any(one.damaged and requested in ("newest", one.step) for one in every):
            raise NotFound(
                f"run {source.name} has no such readable checkpoint",
                hints=("list its readable and damaged checkpoints with `hop info RUN`",),
            )
        if not saved:
            hint = "save checkpoints in the script with `hop.bind` and `hop.loop`, or with `hop.save`"
            raise NotFound(f"run {source.name} has no checkpoint", hints=(hint,))
        steps = ", ".join(str(step) for step in dict.fromkeys(c.step for c in saved))
        raise NotFound(
            f"run {source.name} has no checkpoint of step {requested}",
            hints=(f"choose one of the steps {steps}",),
        )
    return Resume(source.id, found.step, found.manifest)


async def _is_unavailable(services: Services, source: Run, checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint cannot be had any more; it is not used again then.
    A large one is not read whole for a fork: its manifest is, and the blobs must be there."""
    wrong = ""
    if checkpoint.size_bytes <= _MAX_VERIFIED_BYTES:
        wrong = await services.manifests.verify(checkpoint.manifest)
    else:
        try:
            await services.manifests.require_complete(checkpoint.manifest, subject="checkpoint")
        except MissingBlobs as bad:
            (await services.remote_blobs.find_missing(map(Digest, bad.digests))).check_reachable()
            wrong = bad.message
    if not wrong:
        return False
    await services.runs.mark_damaged(
        source.id,
        checkpoint.step,
        f"the checkpoint of step {checkpoint.step} cannot be read ({wrong})",
        now=services.now(),
    )
    services.subscriptions.notify_state(source.id)
    return True

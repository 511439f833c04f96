"""Checkpoints of a run, and forks that start from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.gang import Topology
from hopyard.domain.ids import Digest, QueueName, RunId
from hopyard.domain.run import ResumeFrom as Resume
from hopyard.domain.run import RoleSpec, Run, RunSpec
from hopyard.errors import Conflict, MissingBlobs, NotFound, SpecError
from hopyard.server.accept import accept
from hopyard.server.endpoint import Ask, Endpoint, Nothing
from hopyard.server.fields import (
    MAX_NAMES,
    EnvKey,
    Id,
    In,
    KeptBytes,
    Key,
    Label,
    LongText,
    Name,
    Param,
    Seconds,
    SecretName,
    Text,
    Whole,
)
from hopyard.server.masking import taken_over, with_env
from hopyard.server.pages import PageQuery
from hopyard.server.parts import Parts
from hopyard.server.queues import without_gone_queue
from hopyard.server.rights import check_own
from hopyard.server.routes.runs import SubmitQuery, submitted
from hopyard.server.studyfork import BEST, fork_study
from hopyard.server.wire import MAX_ROLES, RoleIn, RunOut, TopologyIn

_READ_BYTES = 2**30  # of a checkpoint that is read whole before a fork begins with it


class CheckpointsOut(Struct, frozen=True):
    """In the order in which they were saved. next: `after` of the next page; null at the end."""

    checkpoints: Sequence[Checkpoint]
    next: str | None


class KeepQuery(In):
    kept: Annotated[int, Meta(ge=0, le=1, description="0 lets the clean-up have it again")] = 1


class ForkIn(In):
    """What the fork changes; everything else is the run's. params, env, secrets and tags are merged in; null
    keeps what is there. Another user's fork takes over no values of `env`, and of `secrets` the names that
    its user has secrets for.

    checkpoint: null starts afresh, "newest" or a step goes on from there. Of a study whose trials hop, "best"
    trains its best model on, in a study of one trial: params change that of its trial, and it is trained for
    `epochs` more (null: as many as the study's); null does the study once more. trust: the checkpoint is
    another user's, and all of it may be read, which may run code of theirs. id: chosen by the client for safe
    retries.
    """

    params: Annotated[dict[Key, Param], Meta(max_length=MAX_NAMES)] | None = None
    env: Annotated[dict[EnvKey, LongText], Meta(max_length=MAX_NAMES)] | None = None
    secrets: Annotated[tuple[SecretName, ...], Meta(max_length=MAX_NAMES)] = ()
    tags: Annotated[dict[Key, Text], Meta(max_length=MAX_NAMES)] | None = None
    label: Label | None = None
    time_limit_s: Seconds | None = None
    queue: Name | None = None
    priority: Annotated[int, Meta(ge=0, le=100)] | None = None
    preemptible: bool | None = None
    topology: TopologyIn | None = None
    max_output_bytes: KeptBytes | None = None
    max_metrics_bytes: KeptBytes | None = None
    project: Name | None = None
    roles: Annotated[tuple[RoleIn, ...], Meta(min_length=1, max_length=MAX_ROLES)] | None = None
    checkpoint: Literal["newest", "best"] | Whole | None = None
    epochs: Annotated[int, Meta(ge=1, le=10**6)] | None = None
    trust: bool = False
    id: Id | None = None


def checkpoint_endpoints(parts: Parts) -> Sequence[Endpoint[Any, Any]]:
    async def list_checkpoints(ask: Ask[PageQuery, Nothing]) -> CheckpointsOut:
        """List a run's checkpoints in the order in which they were saved.
        Those of which something was found damaged, or is gone, are marked: they are not used.

        409 where the one before the next page was removed meanwhile: list them again.
        """
        page = _page(await parts.runs.checkpoints(RunId(ask.path["id"]), damaged=True), ask.query)
        return CheckpointsOut(
            [
                replace(one, damaged=one.damaged or bool(await parts.trees.lack(one.manifest)))
                for one in page.checkpoints
            ],
            page.next,
        )

    async def keep(ask: Ask[KeepQuery, Nothing]) -> CheckpointsOut:
        """Exempt a checkpoint from clean-up; answers those of this step.
        403 unless the caller is the run's user, or owns the server."""
        run, step = RunId(ask.path["id"]), int(ask.path["step"])
        check_own(ask.caller, await parts.runs.get(run), owner=parts.queues.owner)
        if not any(checkpoint.step == step for checkpoint in await parts.runs.checkpoints(run)):
            raise NotFound(f"the run has no checkpoint of step {step}")
        await parts.runs.keep_checkpoint(run, step, bool(ask.query.kept))
        return CheckpointsOut([one for one in await parts.runs.checkpoints(run) if one.step == step], None)

    async def fork(ask: Ask[SubmitQuery, ForkIn]) -> RunOut:
        """Submit a run with the same code, data versions and environment as another one.

        Of a study it searches anew, or with `checkpoint: "best"` trains its best model on.
        """
        source, change = await parts.runs.get(RunId(ask.path["id"])), ask.body
        if change.epochs is not None and change.checkpoint != BEST:
            raise SpecError(
                "epochs: only a study's best model is trained for so many more",
                hints=('say `checkpoint: "best"` too, or of a script change its parameter: `-p epochs=N`',),
            )
        if source.offline and source.spec.code is None:
            hint = "`hop run SCRIPT`, in the folder of the script, runs it again"
            raise Conflict(
                f"run {source.name} was recorded offline, without its code: it cannot be forked",
                hints=(hint,),
            )
        source, dropped = await taken_over(parts, source, ask.caller)
        inherited, gone = without_gone_queue(await parts.queues.tree(), source.spec)
        source = replace(source, spec=inherited)
        if source.spec.study is None:
            spec = _forked(source, change, await _resume(parts, source, change.checkpoint))
        else:
            fork = await fork_study(
                parts, source, checkpoint=change.checkpoint, params=change.params or {}, epochs=change.epochs
            )
            spec = replace(
                _forked(source, msgspec.structs.replace(change, params=None), fork.resume), study=fork.study
            )
            if change.checkpoint == BEST:  # by its label the study is found, whose best others train on, too
                spec = replace(spec, label=change.label or "")
        spec = with_env(spec, change.env or {}, change.secrets)
        run = await accept(parts, spec, user=ask.caller.user, run_id=ask.body.id, trust=change.trust)
        given = {*(change.env or ()), *spec.secrets}
        return await submitted(
            parts,
            ask,
            run,
            spec,
            not_inherited=[name for name in dropped if name not in given],
            queue_gone=None if change.queue else gone,
        )

    return [
        Endpoint(
            "GET",
            "/runs/{id}/checkpoints",
            list_checkpoints,
            PageQuery,
            returns=CheckpointsOut,
            who="study",
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


def _page(saved: Sequence[Checkpoint], query: PageQuery) -> CheckpointsOut:
    begin = 0
    if query.after is not None:
        begin = next((at for at, one in enumerate(saved, 1) if _cursor(one) == query.after), 0)
        if not begin:
            raise Conflict(
                "the checkpoint that the page before ended with is gone",
                hints=("list them again from the beginning",),
            )
    page = saved[begin : begin + query.limit]
    return CheckpointsOut(page, _cursor(page[-1]) if begin + len(page) < len(saved) else None)


def _cursor(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.attempt}:{checkpoint.rank}:{checkpoint.step}"


def _forked(source: Run, change: ForkIn, resume: Resume | None) -> RunSpec:
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
        roles=spec.roles if change.roles is None else tuple(_role(role) for role in change.roles),
        forked_from=source.id,
        parent=None,
        max_output_bytes=change.max_output_bytes or spec.max_output_bytes,
        max_metrics_bytes=change.max_metrics_bytes or spec.max_metrics_bytes,
        project=change.project or spec.project,
        resume=resume,
    )


def _role(given: RoleIn) -> RoleSpec:
    return msgspec.convert(given, RoleSpec, from_attributes=True)


async def _resume(parts: Parts, source: Run, wanted: str | int | None) -> Resume | None:
    if wanted is None:
        return None
    if wanted == BEST:
        hint = "`newest`, or the step of one: `hop info RUN` lists them"
        raise SpecError(
            f"checkpoint: {source.name} is no study, so none of its checkpoints is known to be the best",
            hints=(hint,),
        )
    every = await parts.runs.checkpoints(source.id, damaged=True)
    saved = [one for one in every if not one.damaged]
    found, damaged = None, set[int]()
    for one in reversed(saved):
        if wanted in ("newest", one.step) and one.step not in damaged:
            if not await _is_damaged(parts, source, one):
                found = one
                break
            damaged.add(one.step)
    if found is None:
        if damaged or any(one.damaged and wanted in ("newest", one.step) for one in every):
            raise NotFound(
                f"run {source.name} has no such checkpoint that can be read",
                hints=("`hop info RUN` lists those that it has, and says what is wrong with others",),
            )
        if not saved:
            hint = "a script saves them with `hop.bind` and `hop.loop`, or with `hop.save`"
            raise NotFound(f"run {source.name} has no checkpoint", hints=(hint,))
        steps = ", ".join(str(step) for step in dict.fromkeys(c.step for c in saved))
        raise NotFound(
            f"run {source.name} has no checkpoint of step {wanted}",
            hints=(f"there are checkpoints of steps: {steps}",),
        )
    return Resume(source.id, found.step, found.manifest)


async def _is_damaged(parts: Parts, source: Run, checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint cannot be had any more; it is not used again then.
    A large one is not read whole for a fork: its manifest is, and the blobs must be there."""
    wrong = ""
    if checkpoint.size_bytes <= _READ_BYTES:
        wrong = await parts.trees.damage(checkpoint.manifest)
    else:
        try:
            await parts.trees.whole(checkpoint.manifest, what="checkpoint")
        except MissingBlobs as bad:
            (await parts.remote.find(map(Digest, bad.digests))).check_elsewhere()
            wrong = bad.message
    if not wrong:
        return False
    await parts.runs.mark_damaged(
        source.id,
        checkpoint.step,
        f"the checkpoint of step {checkpoint.step} cannot be read ({wrong})",
        now=parts.now(),
    )
    parts.hub.state_changed(source.id)
    return True

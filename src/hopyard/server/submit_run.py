"""Accepting a run: what its shape cannot say is checked here, dataset versions are pinned, and the run is
made."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from hopyard.config.schemas.run_rules import check_spec, run_spec_from_json
from hopyard.config.suggest import closest_name
from hopyard.domain.cluster import Node
from hopyard.domain.gang import Gang
from hopyard.domain.ids import (
    DEFAULT_QUEUE,
    Digest,
    GangId,
    check_run_id,
    new_run_id,
)
from hopyard.domain.queue import QueueTree
from hopyard.domain.run import DatasetRef, ResumeFrom, Run, RunSpec
from hopyard.errors import Conflict, DoesNotFit, MissingBlobs, NotFound, SpecError
from hopyard.interfaces.dataset_store import DatasetStore
from hopyard.interfaces.run_store import NewRun, RunStore
from hopyard.scheduler.placement.never_fits import never_fits
from hopyard.server.placement_hints import placement_hints
from hopyard.server.queue_cache import assign_queue
from hopyard.server.services import Services

MAX_NOTE_BYTES = 16 * 1024 * 1024  # of requirements, lock and diff each, which count to no quota


async def submit_run(
    services: Services,
    spec: RunSpec,
    *,
    user: str,
    run_id: str | None = None,
    offline: bool = False,
    submitted_at: datetime | None = None,
    trust_checkpoint: bool = False,
) -> Run:
    """Make a run of a spec, durably; `submitted_at` is when it was submitted (None: now). With a `run_id`
    that exists already and asked for the same: that run (a retry). An offline run is only recorded: it is
    never queued.

    A study's datasets are pinned for all of its trials. trust_checkpoint: the user says that all of the
    checkpoint which it starts from may be read, whoever wrote it.

    Raises SpecError, NotFound (a dataset), Forbidden (the queue), DoesNotFit, MissingBlobs, QuotaExceeded,
    Conflict (the id is another run's)."""
    check_spec(spec)
    now = submitted_at or services.now()
    new_id = check_run_id(run_id) if run_id is not None else new_run_id(now, _RANDOM.randbytes(7))
    asked = spec
    if not offline:
        await check_secrets(services, spec, user)
        nodes = await services.node_cache.get()
        tree = await services.queue_cache.tree()
        spec = assign_queue(
            tree, asked, user=user, owner=services.queue_cache.owner, is_trial=asked.parent is not None
        )
        check_trial_queue(tree, spec, user=user, owner=services.queue_cache.owner)
        await check_can_ever_start(services, spec, user, nodes)
    await services.storage.check_quota(user)
    async with services.blob_collector.paused():
        pinned = (
            replace(spec, datasets=await _pin_versions(services.datasets, spec.datasets))
            if spec.datasets
            else spec
        )
        pinned = await _pin_trial_versions(services.datasets, pinned)
        if (
            spec.resume is not None
            and not trust_checkpoint
            and await _is_foreign(services.runs, spec.resume, user)
        ):
            pinned = replace(pinned, resume=replace(spec.resume, foreign=True))
        try:
            await _check_blobs(services, spec)
        except MissingBlobs as missing:
            # the client does not have them either
            if spec.resume is not None or spec.forked_from is not None:
                (await services.remote_blobs.find_missing(map(Digest, missing.digests))).check_reachable()
            raise
        try:
            (run,) = await services.runs.create([NewRun(new_id, user, pinned, offline)], now=now)
        except Conflict:
            run = await services.runs.get(new_id)
            if run.name.user != user or not _is_same_request(run.spec, asked):
                raise
    if services.storage.has_uploads(user):
        environment, diff = spec.environment, None if spec.git is None else spec.git.diff
        await services.storage.mark_referenced(
            user,
            [
                *filter(None, (environment.requirements, environment.lock, diff)),
                *(await services.manifests.referenced_blobs(spec.code) if spec.code else ()),
            ],
        )
    if not offline:
        services.controller.add_submitted([run])
    return run


async def check_secrets(services: Services, spec: RunSpec, user: str) -> None:
    """Raises NotFound for a secret that the user does not have."""
    trial = (spec.study or {}).get("trial") or {}
    wanted = [*spec.secrets, *(trial.get("secrets") or ())]
    if not wanted:
        return
    known = await services.access.secret_names(user)
    for name in wanted:
        if name not in known:
            near = closest_name(name, known)
            hint = f"did you mean `{near}`?" if near else f"set it with `hop secret set {name}`"
            raise NotFound(
                f"{user} has no secret `{name}`", hints=(hint, "list the secrets with `hop secret ls`")
            )


def check_trial_queue(tree: QueueTree, spec: RunSpec, *, user: str, owner: str) -> None:
    """Raises SpecError and Forbidden where the trials of a study may not wait in its queue, as `in_queue`
    does: their runs are submitted with the study's own token and are not checked again."""
    trial = _trial_spec(spec)
    if trial is not None:
        assign_queue(tree, trial, user=user, owner=owner)


async def check_can_ever_start(services: Services, spec: RunSpec, user: str, nodes: Sequence[Node]) -> None:
    """Raises DoesNotFit where the run, or a trial of the study that it is, could never start: on no node
    there is, or within no limit of its queue."""
    for one in filter(None, (spec, _trial_spec(spec))):
        check_fits(one, nodes)
        await services.queue_cache.check_admissible(_to_gang(one, user), nodes)


def _trial_spec(spec: RunSpec) -> RunSpec | None:
    """What a trial of this study asks for, which waits where its study does; None where there are none."""
    if spec.study is None or not spec.study.get("trial"):
        return None
    return replace(
        run_spec_from_json(spec.study["trial"], path="study.trial"), queue=spec.queue, priority=spec.priority
    )


def check_fits(spec: RunSpec, nodes: Sequence[Node]) -> None:
    """Raises DoesNotFit when the gang is larger than all nodes there are, saying what is missing."""
    why = never_fits(_to_gang(spec, ""), nodes)
    if why is not None:
        raise DoesNotFit(
            why,
            hints=(
                *placement_hints(spec, nodes),
                "list nodes and pools with `hop node ls` and `hop pool ls`",
            ),
        )


def _to_gang(spec: RunSpec, user: str) -> Gang:
    return Gang(
        GangId(""),
        spec.gang_roles(),
        _UNSPECIFIED_TIME,
        spec.queue or DEFAULT_QUEUE,
        user=user,
        topology=spec.topology,
    )


async def _pin_versions(store: DatasetStore, refs: Sequence[DatasetRef]) -> tuple[DatasetRef, ...]:
    pinned: list[DatasetRef] = []
    for at, ref in enumerate(refs):
        version = await store.version(ref.name, ref.version)
        if ref.manifest is not None and ref.manifest != version.manifest:
            raise SpecError(
                f"datasets.{at}.manifest: it differs from the manifest of `{ref.name}`, version "
                f"{version.number}",
                hints=(("push the same data again, or use another version: this version was deleted"),),
            )
        pinned.append(DatasetRef(ref.name, version.number, version.manifest))
    return tuple(pinned)


async def _pin_trial_versions(store: DatasetStore, spec: RunSpec) -> RunSpec:
    """All trials of a study see the same data, also where a new version comes meanwhile."""
    if spec.study is None or not spec.study.get("trial"):
        return spec
    trial = run_spec_from_json(spec.study["trial"], path="study.trial")
    refs = [
        {"name": ref.name, "version": ref.version, "manifest": ref.manifest}
        for ref in await _pin_versions(store, trial.datasets)
    ]
    return replace(spec, study={**spec.study, "trial": {**spec.study["trial"], "datasets": refs}})


async def _check_blobs(services: Services, spec: RunSpec) -> None:
    if spec.code is not None:
        await services.manifests.require_complete(spec.code, subject="code")
    if spec.resume is not None:
        await services.manifests.require_complete(spec.resume.manifest, subject="checkpoint")
    environment = spec.environment
    if environment.requirements is not None:
        await services.manifests.require_blobs(
            [environment.requirements], subject="requirements file", max_bytes=MAX_NOTE_BYTES
        )
    if environment.lock is not None:
        await services.manifests.require_blobs(
            [environment.lock], subject="lock of the environment", max_bytes=MAX_NOTE_BYTES
        )
    if spec.git is not None and spec.git.diff is not None:
        await services.manifests.require_blobs([spec.git.diff], subject="git diff", max_bytes=MAX_NOTE_BYTES)


async def _is_foreign(runs: RunStore, resume: ResumeFrom, user: str) -> bool:
    """Whether the checkpoint is another user's, or of a study that itself began with one, or not known to be
    of that run: the request names both, and the run, or its checkpoint, may have been deleted."""
    try:
        source = await runs.get(resume.run)
        saved = await runs.checkpoints(resume.run, damaged=True)
    except NotFound:
        return True
    before = source.spec.resume
    if not any(one.manifest == resume.manifest for one in saved):
        return True
    return (
        resume.foreign
        or source.name.user != user
        or (source.spec.study is not None and before is not None and before.foreign)
    )


def _is_same_request(stored: RunSpec, requested: RunSpec) -> bool:
    """Whether a run could have come from this request: a dataset's newest version or the tree of queues may
    have changed since, and a first replica may have recorded the environment's lock."""
    if len(stored.datasets) != len(requested.datasets):
        return False
    for there, wanted in zip(stored.datasets, requested.datasets, strict=True):
        if there.name != wanted.name or wanted.version not in (0, there.version):
            return False
    queue, priority = (
        requested.queue or stored.queue,
        stored.priority if requested.priority is None else requested.priority,
    )
    resume = (
        stored.resume
        if stored.resume is None or requested.resume is None
        else replace(stored.resume, foreign=requested.resume.foreign)
    )
    return replace(
        stored,
        datasets=(),
        environment=requested.environment,
        study=_study_without_versions(stored),
        resume=resume,
    ) == replace(
        requested, datasets=(), queue=queue, priority=priority, study=_study_without_versions(requested)
    )


def _study_without_versions(spec: RunSpec) -> Mapping[str, Any] | None:
    if spec.study is None or not spec.study.get("trial"):
        return spec.study
    return {**spec.study, "trial": {**spec.study["trial"], "datasets": []}}


_UNSPECIFIED_TIME = datetime.min
# seeded by the system; asking it for every run would cost more than all else here. Ids are no secrets
_RANDOM = random.Random()

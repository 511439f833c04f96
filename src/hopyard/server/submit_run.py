"""Accepts runs: checks what the schema cannot express, pins dataset versions, and creates the run."""

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
from hopyard.domain.script_tags import without_script_tags
from hopyard.errors import Conflict, DoesNotFit, MissingBlobs, NotFound, SpecError
from hopyard.interfaces.dataset_store import DatasetStore
from hopyard.interfaces.run_store import NewRun, RunStore
from hopyard.scheduler.explain.placement_messages import never_fits_message
from hopyard.server.node_cache import NodeCache
from hopyard.server.placement_hints import placement_hints
from hopyard.server.queue_cache import assign_queue
from hopyard.server.services import Services

MAX_NOTE_BYTES = (
    16 * 1024 * 1024
)  # for each of requirements, lock and diff, which do not count toward the quota


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
    """Creates a run durably from a spec.

    submitted_at: None for now. run_id: if that run exists and was requested with the same spec, it is
    returned, since this is a retry. An offline run is only recorded and never queued. The datasets of a study
    are pinned for all of its trials. trust_checkpoint: the user allows reading the entire initial checkpoint,
    whoever wrote it.

    Raises SpecError, NotFound (a dataset), Forbidden (the queue), DoesNotFit, MissingBlobs, QuotaExceeded,
    Conflict (another run has the ID).
    """
    spec = spec.with_base_image(services.base_image)
    check_spec(spec)
    now = submitted_at or services.now()
    new_id = check_run_id(run_id) if run_id is not None else new_run_id(now, _RANDOM.randbytes(7))
    requested = spec
    if not offline:
        spec = await accept_spec(services, requested, user)
    await services.storage.check_quota(user)
    async with services.blob_collector.paused():
        pinned = (
            replace(spec, datasets=await pin_versions(services.datasets, spec.datasets))
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
        except MissingBlobs as error:
            # the client does not have these blobs either
            if spec.resume is not None or spec.forked_from is not None:
                (await services.remote_blobs.find_missing(map(Digest, error.digests))).check_reachable()
            raise
        try:
            (run,) = await services.runs.create([NewRun(new_id, user, pinned, offline)], now=now)
        except Conflict:
            run = await services.runs.get(new_id)
            stored = without_script_tags(run.spec, await services.runs.script_tags(new_id))
            if run.name.user != user or not _is_same_request(stored, requested):
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


async def accept_spec(services: Services, requested: RunSpec, user: str) -> RunSpec:
    """Returns the spec with its queue and priority, after every check of a submission that needs no blobs.

    Raises SpecError, NotFound (a secret), Forbidden (the queue), DoesNotFit.
    """
    await check_secrets(services, requested, user)
    await _check_targets(services, requested)
    nodes = await services.node_cache.get()
    tree = await services.queue_cache.tree()
    spec = assign_queue(
        tree,
        requested,
        user=user,
        owner=services.queue_cache.owner,
        is_trial=requested.parent is not None,
    )
    check_trial_queue(tree, spec, user=user, owner=services.queue_cache.owner)
    await check_can_ever_start(services, spec, user, nodes)
    return spec


async def _check_targets(services: Services, requested: RunSpec) -> None:
    """Raises SpecError for an unknown target of `on_end`. A target that was removed since does not prevent a
    fork."""
    targets = requested.on_end
    if targets and requested.forked_from is not None:
        inherited = (await services.runs.get(requested.forked_from)).spec.on_end
        targets = tuple(target for target in targets if target not in inherited)
    services.check_targets(targets)


async def check_secrets(services: Services, spec: RunSpec, user: str) -> None:
    """Raises NotFound for a secret that the user does not have; SpecError for one that is a variable as
    well."""
    trial = (spec.study or {}).get("trial") or {}
    requested = [*spec.secrets, *(trial.get("secrets") or ())]
    if not requested:
        return
    existing = await services.access.secret_names(user)
    for name in requested:
        if name not in existing:
            suggestion = closest_name(name, existing)
            hint = f"did you mean `{suggestion}`?" if suggestion else f"set it with `hop secret set {name}`"
            raise NotFound(
                f"{user} has no secret `{name}`", hints=(hint, "list the secrets with `hop secret ls`")
            )


def check_trial_queue(tree: QueueTree, spec: RunSpec, *, user: str, owner: str) -> None:
    """Raises SpecError or Forbidden, as `assign_queue`, if the trials of a study may not wait in its queue.
    The runs of trials are submitted with the study's own token, and are not checked again."""
    trial = _trial_spec(spec)
    if trial is not None:
        assign_queue(tree, trial, user=user, owner=owner)


async def check_can_ever_start(services: Services, spec: RunSpec, user: str, nodes: Sequence[Node]) -> None:
    """Raises DoesNotFit if the run, or a trial of the study, can never start. Either no node is large enough,
    or a limit of its queue is too low."""
    for requested_spec in filter(None, (spec, _trial_spec(spec))):
        check_fits(services.node_cache, requested_spec, nodes)
        await services.queue_cache.check_admissible(_to_gang(requested_spec, user), nodes)


def _trial_spec(spec: RunSpec) -> RunSpec | None:
    """Returns the spec of a trial of this study, in the study's queue; None if there are no trials."""
    if spec.study is None or not spec.study.get("trial"):
        return None
    return replace(
        run_spec_from_json(spec.study["trial"], path="study.trial"), queue=spec.queue, priority=spec.priority
    )


def check_fits(cache: NodeCache, spec: RunSpec, nodes: Sequence[Node]) -> None:
    """Raises DoesNotFit, with what is missing, when the gang exceeds all nodes."""
    cause = cache.never_fits_cause(_to_gang(spec, ""), nodes)
    if cause is not None:
        raise DoesNotFit(
            never_fits_message(cause),
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


async def pin_versions(store: DatasetStore, refs: Sequence[DatasetRef]) -> tuple[DatasetRef, ...]:
    """Returns the references with the versions and manifests that a run would read now. Raises NotFound,
    SpecError."""
    pinned: list[DatasetRef] = []
    for index, ref in enumerate(refs):
        version = await store.version(ref.name, ref.version)
        if ref.manifest is not None and ref.manifest != version.manifest:
            raise SpecError(
                f"datasets.{index}.manifest: it differs from the manifest of `{ref.name}`, version "
                f"{version.number}",
                hints=(("push the same data again, or use another version: this version was deleted"),),
            )
        pinned.append(DatasetRef(ref.name, version.number, version.manifest, ref.path))
    return tuple(pinned)


async def _pin_trial_versions(store: DatasetStore, spec: RunSpec) -> RunSpec:
    """Pins the datasets of trials, so that all trials of a study read the same versions."""
    if spec.study is None or not spec.study.get("trial"):
        return spec
    trial = run_spec_from_json(spec.study["trial"], path="study.trial")
    refs = [
        {
            "name": ref.name,
            "version": ref.version,
            "manifest": ref.manifest,
            **({"path": ref.path} if ref.path else {}),
        }
        for ref in await pin_versions(store, trial.datasets)
    ]
    return replace(spec, study={**spec.study, "trial": {**spec.study["trial"], "datasets": refs}})


async def _check_blobs(services: Services, spec: RunSpec) -> None:
    if spec.code is not None:
        await services.manifests.require_complete(spec.code, subject="code")
    if spec.resume is not None:
        await services.manifests.require_complete(spec.resume.manifest, subject="checkpoint")
    if spec.initial_folder is not None:
        await services.manifests.require_complete(spec.initial_folder, subject="run folder")
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
    """Returns whether the checkpoint is not known to be the user's own.

    It may be another user's, or come from a study that itself began with a foreign one. It may also be
    unknown, since the run or its checkpoint may have been deleted.
    """
    try:
        source = await runs.get(resume.run)
        checkpoints = await runs.checkpoints(resume.run, damaged=True)
    except NotFound:
        return True
    source_resume = source.spec.resume
    if not any(checkpoint.manifest == resume.manifest for checkpoint in checkpoints):
        return True
    return (
        resume.foreign
        or source.name.user != user
        or (source.spec.study is not None and source_resume is not None and source_resume.foreign)
    )


def _is_same_request(stored: RunSpec, requested: RunSpec) -> bool:
    """Returns whether a stored run can be the result of this request. Since then, a dataset's newest version
    or the tree of queues may have changed, and a replica may have recorded the environment's lock."""
    if len(stored.datasets) != len(requested.datasets):
        return False
    for stored_ref, requested_ref in zip(stored.datasets, requested.datasets, strict=True):
        if (stored_ref.name, stored_ref.path) != (requested_ref.name, requested_ref.path):
            return False
        if requested_ref.version not in (0, stored_ref.version):
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
# seeded by the system; a system call for every run would cost more than everything else here. IDs are not
# secret
_RANDOM = random.Random()

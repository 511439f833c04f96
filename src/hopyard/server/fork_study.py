"""Forks of studies: one repeats the search, the other continues training of the best model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from hopyard.config.schemas.runs import EnvironmentIn, GitIn, ParamFormatIn
from hopyard.config.schemas.studies import BeginningIn
from hopyard.config.schemas.study_json import study_from_json, study_to_json
from hopyard.config.search.study_fork import fork_study_spec
from hopyard.controller.manifests import decode_manifest
from hopyard.domain.ids import Digest
from hopyard.domain.run import Environment, GitState, ParamValue, ResumeFrom, Run
from hopyard.domain.study import InitialState, Parallel
from hopyard.errors import IntegrityError, NotFound, SpecError
from hopyard.sdk.checkpoints import INDEX_FILE
from hopyard.server.services import Services

BEST_CHECKPOINT = "best"
_MAX_INDEX_BYTES = 16 * 1024 * 1024
_SAVED_HINT = "wait for the end of the study, or up to 30 s: its state is saved at these times"


@dataclass(frozen=True, slots=True)
class StudyFork:
    """A fork of a study. study: its StudySpec as JSON. resume: the checkpoint with its initial state, None
    for none."""

    study: Mapping[str, Any]
    resume: ResumeFrom | None


async def fork_study(
    services: Services,
    source: Run,
    *,
    checkpoint: str | int | None,
    params: Mapping[str, ParamValue],
    epochs: int | None,
) -> StudyFork:
    """Returns the fork of a study.

    checkpoint: "best" continues training of its best model, for so many epochs, with these changes of its
    parameters; None repeats the study. Raises SpecError for a change that is not allowed, NotFound if there
    is no best model.
    """
    if checkpoint is None:
        return await _fork_search(services, source, params)
    spec = source.spec.study
    assert spec is not None
    if checkpoint != BEST_CHECKPOINT or spec["parallel"] != Parallel.MOP:
        raise SpecError(
            f"checkpoint: {source.name} is a study; only its trials have checkpoints",
            hints=_alternative_hints(spec),
        )
    study = study_from_json(spec)
    async for resume, states in _saved_states(services, source):
        initial_state = _select_best(source, resume, states)
        if initial_state is not None and (
            study.beginning is None or initial_state.state != study.beginning.state
        ):
            return StudyFork(
                study_to_json(fork_study_spec(study, initial_state, changes=params, epochs=epochs)), resume
            )
    raise NotFound(
        f"{source.name} has saved no best model" + ("" if source.phase.is_final else " yet"),
        hints=(_SAVED_HINT,),
    )


def _select_best(source: Run, resume: ResumeFrom, states: Mapping[str, Any]) -> InitialState | None:
    """Returns the best of these states; None if there is none, or if its entry is invalid, since it comes
    from the run."""
    best_entry = next(
        ((name, entry) for name, entry in states.items() if isinstance(entry, dict) and entry.get("best")),
        None,
    )
    if best_entry is None:
        return None
    fields = {key: best_entry[1].get(key) for key in ("trial", "epoch", "value", "params")}
    fields["visited"] = best_entry[1].get("visited") or []
    try:
        beginning = msgspec.convert(
            {"run": resume.run, "state": best_entry[0], "study": str(source.name), **fields}, BeginningIn
        )
    except msgspec.ValidationError:
        return None
    return InitialState(
        beginning.run,
        beginning.state,
        beginning.study,
        beginning.trial,
        beginning.epoch,
        beginning.value,
        beginning.params,
        tuple(beginning.visited),
    )


def with_trial_code(
    study: Mapping[str, Any],
    code: str | None,
    *,
    git: GitIn | None = None,
    environment: EnvironmentIn | None = None,
    param_format: ParamFormatIn | None = None,
) -> dict[str, Any]:
    """Returns the StudySpec with this code for its trials, this environment and this form of parameters;
    None keeps that of the study. git: of the code."""
    trial = study.get("trial")
    if not trial:
        return dict(study)
    changes: dict[str, Any] = {"environment": environment, "param_format": param_format}
    changed = {key: value for key, value in changes.items() if value is not None}
    if code is not None:
        changed |= {"code": code, "git": git}
    return {**study, "trial": {**trial, **msgspec.to_builtins(changed)}}


def to_git(state: GitIn | None) -> GitState | None:
    return None if state is None else msgspec.convert(state, GitState, from_attributes=True)


def to_environment(environment: EnvironmentIn) -> Environment:
    return msgspec.convert(environment, Environment, from_attributes=True)


async def _fork_search(services: Services, source: Run, params: Mapping[str, ParamValue]) -> StudyFork:
    """Returns a fork that repeats the search. A study that itself began with another's state has it in each
    of its checkpoints, and its fork begins with it again."""
    spec = source.spec.study
    assert spec is not None
    if params:
        hints = (
            "change the file, and start a new study: `hop search search.yaml -p K=V`",
            *_alternative_hints(spec),
        )
        raise SpecError(
            f"params: {source.name} is a study: its parameters are those of its space", hints=hints
        )
    study = {**spec, "continues": ""}
    initial_state = study_from_json(spec).beginning
    if initial_state is None:
        return StudyFork(study, None)
    async for resume, states in _saved_states(services, source):
        if initial_state.fork_state_name in states:
            beginning = {
                **study_to_json(study_from_json(spec))["beginning"],
                "run": resume.run,
                "state": initial_state.fork_state_name,
            }
            return StudyFork({**study, "beginning": beginning}, resume)
    return StudyFork(study, source.spec.resume)


def _alternative_hints(spec: Mapping[str, Any]) -> tuple[str, ...]:
    if spec["parallel"] == Parallel.MOP:
        return (
            (
                "continue training of its best model with `hop fork STUDY --checkpoint best`, with `-p "
                "K=V` for changes"
            ),
        )
    return (
        (
            "fork a trial, which is a run: `hop search show STUDY` names the best one, `hop fork RUN "
            "--checkpoint newest` continues it"
        ),
    )


async def _saved_states(
    services: Services, source: Run
) -> AsyncIterator[tuple[ResumeFrom, Mapping[str, Any]]]:
    """Yields checkpoints with the index of the states in them, newest first. A study that continues another
    one ends with the checkpoint from which it continued."""
    checkpoints = [
        ResumeFrom(source.id, checkpoint.step, checkpoint.manifest)
        for checkpoint in reversed(await services.runs.checkpoints(source.id))
    ]
    spec = source.spec
    if spec.resume is not None and spec.study is not None and spec.study.get("continues"):
        checkpoints.append(spec.resume)
    for resume in checkpoints:
        try:
            states = await _read_state_index(services, resume.manifest)
        except (NotFound, IntegrityError):  # removed or damaged: an older one may be usable
            continue
        yield resume, states


async def _read_state_index(services: Services, digest: Digest) -> Mapping[str, Any]:
    """Returns the index of states in a checkpoint. Raises NotFound, IntegrityError, BlobsOnOtherServer.

    The index is {} for a checkpoint of a run that is no study, and for one whose files were changed by hand.
    """
    (await services.remote_blobs.fetch_missing([digest])).check_reachable()
    manifest = await decode_manifest(await services.blobs.get(digest))
    index = next((file for file in manifest.files if file.path == INDEX_FILE), None)
    if index is None or index.size > _MAX_INDEX_BYTES:
        return {}
    (await services.remote_blobs.fetch_missing(index.chunks)).check_reachable()
    data = b"".join([part async for _, part in services.blobs.get_many(index.chunks)])
    try:
        document = await asyncio.to_thread(json.loads, data)
    except ValueError:
        return {}
    states = document.get("states") if isinstance(document, dict) else None
    paths = {file.path for file in manifest.files}
    return (
        {name: state for name, state in states.items() if name in paths} if isinstance(states, dict) else {}
    )

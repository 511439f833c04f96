"""Forks of studies: one that searches anew, and one that trains a study's best model on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from hopyard.config.schemas.studies import BeginningIn
from hopyard.config.schemas.study_json import study_from_json, study_to_json
from hopyard.config.search.study_fork import fork_study_spec
from hopyard.controller.manifests import decode_manifest
from hopyard.domain.ids import Digest
from hopyard.domain.run import ParamValue, ResumeFrom, Run
from hopyard.domain.study import InitialState, Parallel
from hopyard.errors import IntegrityError, NotFound, SpecError
from hopyard.sdk.checkpoints import INDEX_FILE
from hopyard.server.services import Services

BEST_CHECKPOINT = "best"
_MAX_INDEX_BYTES = 16 * 1024 * 1024
_SAVED_HINT = "wait for the end of the study, or up to 30 s: its state is saved at these times"


@dataclass(frozen=True, slots=True)
class StudyFork:
    """study: its StudySpec as JSON. resume: the checkpoint in which lies what it begins with, None where it
    begins with nothing."""

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
    """What a fork of this study does. checkpoint: "best" trains its best model on, for so many epochs, with
    these changes of its parameters; None does the same study once more. Raises SpecError for what cannot be
    changed, NotFound where there is no best model."""
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
        begin = _select_best(source, resume, states)
        if begin is not None and (study.beginning is None or begin.state != study.beginning.state):
            return StudyFork(
                study_to_json(fork_study_spec(study, begin, changes=params, epochs=epochs)), resume
            )
    raise NotFound(
        f"{source.name} has saved no best model" + ("" if source.phase.is_final else " yet"),
        hints=(_SAVED_HINT,),
    )


def _select_best(source: Run, resume: ResumeFrom, states: Mapping[str, Any]) -> InitialState | None:
    """The best of these states. None where there is none, or what is said of it makes no sense: it comes from
    the run."""
    found = next(
        ((name, said) for name, said in states.items() if isinstance(said, dict) and said.get("best")), None
    )
    if found is None:
        return None
    told = {key: found[1].get(key) for key in ("trial", "epoch", "value", "params")}
    try:
        checked = msgspec.convert(
            {"run": resume.run, "state": found[0], "study": str(source.name), **told}, BeginningIn
        )
    except msgspec.ValidationError:
        return None
    return InitialState(
        checked.run, checked.state, checked.study, checked.trial, checked.epoch, checked.value, checked.params
    )


async def _fork_search(services: Services, source: Run, params: Mapping[str, ParamValue]) -> StudyFork:
    """A fork of a study that itself began with another's state begins with that again: it has it in every
    checkpoint of its own."""
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
    begin = study_from_json(spec).beginning
    if begin is None:
        return StudyFork(study, None)
    async for resume, states in _saved_states(services, source):
        if begin.fork_state_name in states:
            own = {
                **study_to_json(study_from_json(spec))["beginning"],
                "run": resume.run,
                "state": begin.fork_state_name,
            }
            return StudyFork({**study, "beginning": own}, resume)
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
    """Checkpoints with what is known of the states in them, the newest first; of a study that continues
    another, that one's last."""
    saved = [
        ResumeFrom(source.id, one.step, one.manifest)
        for one in reversed(await services.runs.checkpoints(source.id))
    ]
    spec = source.spec
    if spec.resume is not None and spec.study is not None and spec.study.get("continues"):
        saved.append(spec.resume)
    for resume in saved:
        try:
            states = await _read_state_index(services, resume.manifest)
        except (NotFound, IntegrityError):  # swept or damaged: an older one may do
            continue
        yield resume, states


async def _read_state_index(services: Services, digest: Digest) -> Mapping[str, Any]:
    """Raises NotFound, IntegrityError, BlobsElsewhere.
    Nothing is said in checkpoints of a run that is no study, or that were damaged by hand."""
    (await services.remote_blobs.fetch_missing([digest])).check_reachable()
    manifest = await decode_manifest(await services.blobs.get(digest))
    index = next((file for file in manifest.files if file.path == INDEX_FILE), None)
    if index is None or index.size > _MAX_INDEX_BYTES:
        return {}
    (await services.remote_blobs.fetch_missing(index.chunks)).check_reachable()
    data = b"".join([part async for _, part in services.blobs.get_many(index.chunks)])
    try:
        said = await asyncio.to_thread(json.loads, data)
    except ValueError:
        return {}
    states = said.get("states") if isinstance(said, dict) else None
    there = {file.path for file in manifest.files}
    return {name: of for name, of in states.items() if name in there} if isinstance(states, dict) else {}

"""From a trial's work to the run that does it: its spec, its id, and the checkpoint that it goes on from.
Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from hopyard.domain.ids import RunId, TrialId
from hopyard.domain.study import StudySpec
from hopyard.errors import SpecError
from hopyard.studies.journal import JournalRecord
from hopyard.studies.trainer import TrialWork

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


@dataclass(frozen=True, slots=True)
class TrialRunSpec:
    """As the journal's record `run` has it. resume: the checkpoint as a RunSpec names it, None from the
    beginning. last_epoch, epoch_shift: as of `TrialRun`."""

    trial: TrialId
    run: RunId
    budget: int
    last_epoch: int
    epoch_shift: int = 0
    resume: api.ResumeIn | None = None

    @classmethod
    def from_record(cls, record: JournalRecord) -> TrialRunSpec:
        return cls(
            TrialId(record["trial"]),
            RunId(record["run"]),
            int(record["budget"]),
            int(record["last"]),
            int(record["shift"]),
            record["resume"],
        )


def counts_epochs(spec: StudySpec) -> bool:
    """A study whose trials do one epoch each says nothing of epochs: a trial is its script as it stands."""
    return spec.max_epochs > 1


def copied_epoch_shift(source: TrialRunSpec, step: int, epochs: int, *, done_epochs: int) -> int:
    """From the script's epochs to those of a trial with `done_epochs` epochs that resumes from another
    trial's checkpoint: the script counts on from the epochs of the copied state. source: the run of the
    checkpoint of this step, saved after `epochs` epochs of its trial. A step beyond the last epoch of that
    run counts batches."""
    return done_epochs - (step if step <= source.last_epoch else epochs - source.epoch_shift)


def plan_run(
    study: RunId, spec: StudySpec, work: TrialWork, source: api.Checkpoint | None, *, shift: int
) -> tuple[TrialRunSpec, api.SubmitIn]:
    """The run that does this work, and the body of its submission. source: the checkpoint to go on from, as
    the server lists them. shift: from the script's epochs to the trial's."""
    last = work.budget - shift
    resume: api.ResumeIn | None = (
        None
        if source is None
        else {"run": source["run"], "step": int(source["step"]), "manifest": source["manifest"]}
    )
    body = run_request(study, spec, work, resume, last)
    return TrialRunSpec(work.trial, RunId(body["id"] or ""), work.budget, last, shift, resume), body


def run_request(
    study: RunId, spec: StudySpec, work: TrialWork, resume: api.ResumeIn | None, last_epoch: int
) -> api.SubmitIn:
    """What `POST /runs` takes. The id is made of all that decides what the run does, so that submitting it
    again is harmless."""
    if spec.trial is None:
        raise SpecError("study.trial: required, but absent")
    params = {**spec.trial.get("params", {}), **work.params}
    if counts_epochs(spec):
        params[spec.budget_param] = last_epoch
    run = {
        **spec.trial,
        "params": params,
        "tags": {**spec.trial.get("tags", {}), "study": spec.name, "trial": str(work.trial)},
        "parent": study,
        "resume": resume,
        "forked_from": None if resume is None else resume["run"],
    }
    said = json.dumps([study, work.trial, work.budget, params, resume], sort_keys=True)
    return {"id": _run_id(said), "spec": cast("api.SpecIn", run)}


def _run_id(text: str) -> str:
    """20 characters, as runs' ids have."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=13).digest(), "big")
    return "".join(_ID_ALPHABET[(number >> (5 * place)) & 31] for place in range(20))

"""Plans the run of a trial's work: its spec, its id, and the checkpoint from which it resumes. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from hopyard.domain.ids import RunId, TrialId
from hopyard.domain.study import BudgetUnit, StudySpec
from hopyard.errors import SpecError
from hopyard.studies.journal import JournalRecord
from hopyard.studies.trainer import TrialWork
from hopyard.studies.trial_runs.report_unit import UnitSettings

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


@dataclass(frozen=True, slots=True)
class TrialRunSpec:
    """The journal's record `run`. resume: the checkpoint as in a RunSpec; None for a start from scratch.
    last_epoch, epoch_shift: as in `TrialRun`. retry: the number of earlier runs for the same budget that were
    killed or failed. folder: the run folder that it begins with. continued: the runs with which that folder
    began, as in `RunSpec.continued_runs`."""

    trial: TrialId
    run: RunId
    budget: int
    last_epoch: int
    epoch_shift: int = 0
    resume: api.ResumeIn | None = None
    retry: int = 0
    folder: str | None = None
    continued: tuple[str, ...] = ()

    @classmethod
    def from_record(cls, record: JournalRecord) -> TrialRunSpec:
        return cls(
            TrialId(record["trial"]),
            RunId(record["run"]),
            int(record["budget"]),
            int(record["last"]),
            int(record["shift"]),
            record["resume"],
            int(record.get("retry", 0)),
            record.get("folder"),
            tuple(record.get("continued", ())),
        )


def unit_settings(spec: StudySpec, run_spec: TrialRunSpec, *, steps_are_epochs: bool = True) -> UnitSettings:
    """Returns how the reports of this run are counted. steps_are_epochs: as in `UnitSettings`."""
    counts_steps = spec.budget_unit is BudgetUnit.STEPS
    return UnitSettings(run_spec.last_epoch, counts_steps, spec.steps_per_epoch, steps_are_epochs)


def copied_epoch_shift(source: TrialRunSpec, step: int, epochs: int, *, done_epochs: int) -> int:
    """Returns the shift from the script's epochs to those of a trial with `done_epochs` epochs that resumes
    from another trial's checkpoint. The script continues to count from the epochs of the copied state.

    source: the run of the checkpoint of this step, saved after `epochs` epochs of its trial. A step beyond
    the last epoch of that run counts batches.
    """
    return done_epochs - (step if step <= source.last_epoch else epochs - source.epoch_shift)


def plan_run(
    study: RunId,
    spec: StudySpec,
    work: TrialWork,
    source: api.CheckpointOut | None,
    *,
    shift: int,
    retry: int = 0,
    folder: str | None = None,
    continued: tuple[str, ...] = (),
) -> tuple[TrialRunSpec, api.SubmitIn]:
    """Returns the run for this work, and the body of its submission. source: the checkpoint to resume from,
    as the server lists it. shift: from the script's epochs to the trial's. retry, folder, continued: as in
    `TrialRunSpec`."""
    last = work.budget - shift
    resume: api.ResumeIn | None = (
        None
        if source is None
        else {"run": source["run"], "step": int(source["step"]), "manifest": source["manifest"]}
    )
    body = run_request(study, spec, work, resume, last, retry=retry, folder=folder, continued=continued)
    run = RunId(body["id"] or "")
    return TrialRunSpec(work.trial, run, work.budget, last, shift, resume, retry, folder, continued), body


def run_request(
    study: RunId,
    spec: StudySpec,
    work: TrialWork,
    resume: api.ResumeIn | None,
    last_epoch: int,
    *,
    retry: int = 0,
    folder: str | None = None,
    continued: tuple[str, ...] = (),
) -> api.SubmitIn:
    """Returns the body for `POST /runs`. The id is derived from all inputs of the run, so that a repeated
    submission is harmless."""
    if spec.trial is None:
        raise SpecError("study.trial: required, but absent")
    params = {**spec.trial.get("params", {}), **work.params}
    if spec.has_budget:
        params[spec.budget_param] = last_epoch
    run = {
        **spec.trial,
        "params": params,
        "tags": {**spec.trial.get("tags", {}), "study": spec.name, "trial": str(work.trial)},
        "parent": study,
        "resume": resume,
        "forked_from": None if resume is None else resume["run"],
        "initial_folder": folder,
        "continued_runs": continued,
    }
    inputs = [study, work.trial, work.budget, params, resume, *([retry] if retry else ())]
    identity = json.dumps(inputs, sort_keys=True)
    return {"id": _run_id(identity), "spec": cast("api.SpecIn", run)}


def _run_id(text: str) -> str:
    """Returns 20 characters, as in other ids of runs."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=13).digest(), "big")
    return "".join(_ID_ALPHABET[(number >> (5 * index)) & 31] for index in range(20))

"""The run of a trial: its params, its source checkpoint, and an id that is reproducible."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.domain.ids import RunId, TrialId, is_run_id
from hopyard.domain.space import Space
from hopyard.domain.study import Goal, Parallel, StudySpec
from hopyard.errors import SpecError
from hopyard.studies.trainer import TrialWork
from hopyard.studies.trial_runs.trial_spec import TrialRunSpec, copied_epoch_shift, plan_run, run_request

STUDY = RunId("study-run")
TRIAL = {"project": "p", "roles": [], "params": {"lr": 0.1, "fixed": 7}, "tags": {"team": "vision"}}


def study(**fields: Any) -> StudySpec:
    return StudySpec(
        **{
            "name": "s",
            "space": Space(()),
            "metric": "m",
            "goal": Goal.MIN,
            "parallel": Parallel.TRIALS,
            "max_epochs": 9,
            "trial": TRIAL,
            **fields,
        }
    )


def work(budget: int = 3, *, done: int = 0, trial: str = "4", **params: Any) -> TrialWork:
    return TrialWork(TrialId(trial), params, budget, done)


def test_new_trial_has_complete_run_spec() -> None:
    launched, body = plan_run(STUDY, study(), work(lr=0.5), None, shift=0)
    spec = body["spec"]
    assert spec["params"] == {"lr": 0.5, "fixed": 7, "epochs": 3}
    assert spec["tags"] == {"team": "vision", "study": "s", "trial": "4"}
    assert (spec["parent"], spec["resume"], spec["project"]) == (STUDY, None, "p")
    assert launched == TrialRunSpec(TrialId("4"), RunId(body["id"]), 3, 3)
    assert is_run_id(body["id"])
    assert plan_run(STUDY, study(), work(lr=0.5), None, shift=0) == (launched, body)


def test_run_ids_differ_for_different_trials() -> None:
    bodies = [
        run_request(STUDY, study(), work(lr=0.5), None, 3),
        run_request(RunId("study-two"), study(), work(lr=0.5), None, 3),
        run_request(STUDY, study(), work(lr=0.6), None, 3),
        run_request(STUDY, study(), work(lr=0.5, trial="5"), None, 3),
        run_request(STUDY, study(), work(4, lr=0.5), None, 4),
        run_request(STUDY, study(), work(lr=0.5), {"run": "r", "step": 1, "manifest": "m"}, 3),
    ]
    assert len({body["id"] for body in bodies}) == len(bodies)


def test_resumed_trial_starts_from_its_checkpoint() -> None:
    source = {"run": "before", "step": 3, "manifest": "f" * 64, "rank": 0}
    launched, body = plan_run(STUDY, study(), work(9, done=3), source, shift=0)
    assert body["spec"]["resume"] == {"run": "before", "step": 3, "manifest": "f" * 64}
    assert (body["spec"]["forked_from"], body["spec"]["params"]["epochs"]) == ("before", 9)
    assert (launched.epoch_shift, launched.last_epoch) == (0, 9)
    older, _ = plan_run(STUDY, study(), work(9, done=3), {**source, "step": 2}, shift=0)
    assert (older.epoch_shift, older.last_epoch) == (0, 9)  # an epoch is repeated


@pytest.mark.parametrize(
    ("copied", "step", "epochs", "shift", "last"),
    [
        (TrialRunSpec(TrialId("7"), RunId("other"), 4, 4), 4, 4, 0, 6),
        (TrialRunSpec(TrialId("7"), RunId("other"), 4, 4), 3, 4, 1, 5),  # the newest checkpoint
        # more than the study's epochs, and epochs all the same
        (TrialRunSpec(TrialId("7"), RunId("other"), 9, 12, -3), 12, 9, -8, 14),
        (TrialRunSpec(TrialId("7"), RunId("other"), 4, 4), 5000, 4, 0, 6),  # batches
        (TrialRunSpec(TrialId("7"), RunId("other"), 4, 6, -2), 5000, 4, -2, 8),
    ],
)
def test_copy_trains_requested_number_of_epochs(
    copied: TrialRunSpec, step: int, epochs: int, shift: int, last: int
) -> None:
    source = {"run": "other", "step": step, "manifest": "f" * 64}
    result = copied_epoch_shift(copied, step, epochs, done_epochs=4)
    launched, body = plan_run(STUDY, study(), work(6, done=4), source, shift=result)
    assert (launched.epoch_shift, launched.last_epoch, body["spec"]["params"]["epochs"]) == (
        shift,
        last,
        last,
    )


def test_study_without_epochs_adds_no_epochs_parameter() -> None:
    _, body = plan_run(STUDY, study(max_epochs=1), work(1), None, shift=0)
    assert "epochs" not in body["spec"]["params"]
    _, single = plan_run(STUDY, study(max_epochs=1, budget_given=True), work(1), None, shift=0)
    assert single["spec"]["params"]["epochs"] == 1
    _, named = plan_run(STUDY, study(budget_param="max_steps"), work(3), None, shift=0)
    assert named["spec"]["params"]["max_steps"] == 3


def test_record_is_sufficient_to_resubmit_run() -> None:
    source = {"run": "other", "step": 2, "manifest": "f" * 64}
    launched, body = plan_run(STUDY, study(), work(6, done=4, lr=0.2), source, shift=2)
    record = {
        "kind": "run",
        "trial": "4",
        "run": launched.run,
        "budget": 6,
        "last": launched.last_epoch,
        "shift": launched.epoch_shift,
        "resume": launched.resume,
    }
    restored = TrialRunSpec.from_record(record)
    assert restored == launched
    assert run_request(STUDY, study(), work(6, done=5, lr=0.2), restored.resume, restored.last_epoch) == body


def test_study_without_trial_spec_has_no_runs() -> None:
    with pytest.raises(SpecError, match=r"study\.trial"):
        run_request(STUDY, study(trial=None), work(), None, 3)

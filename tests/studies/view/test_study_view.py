"""The state of a study, derived from its journal."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hopyard.studies.study_state import TrialPhase
from hopyard.studies.view.study_view import StudyView

SPEC = {"kind": "study", "spec": {"name": "digits", "metric": "acc", "goal": "max", "parallel": "mop"}}


def proposal_record(
    trial: str, *, budget: int = 2, start_from: str | None = None, **params: Any
) -> dict[str, Any]:
    return {
        "kind": "asked",
        "answer": {"trial": trial, "params": params, "budget": budget, "start_from": start_from},
    }


def report_record(
    trial: str, step: int, value: float | None, verdict: str = "continue", outcome: str = "running"
) -> dict[str, Any]:
    return {
        "kind": "told",
        "report": {"trial": trial, "step": step, "value": value, "outcome": outcome},
        "verdict": verdict,
        "metrics": {} if value is None else {"acc": value},
    }


def hop_record(
    n: int,
    trial: str,
    worker: str = "0",
    *,
    epoch: int = 0,
    partition: int = 0,
    at: float = 0.0,
    size: int = 10,
) -> dict[str, Any]:
    return {
        "kind": "hop",
        "n": n,
        "trial": trial,
        "epoch": epoch,
        "partitions": [partition],
        "workers": [worker],
        "began_at": at,
        "ended_at": at + 1.0,
        "start_from": None,
        "state": f"s{n}",
        "bytes": size,
        "fetch_s": 0.0,
        "save_s": 0.0,
    }


def test_trial_with_all_epochs_is_completed() -> None:
    view = StudyView.from_records(
        [SPEC, proposal_record("0", lr=0.1), report_record("0", 1, 0.5), report_record("0", 2, 0.4)]
    )
    trial = view.trials["0"]
    assert (trial.state, trial.epoch, trial.value, trial.best, trial.best_epoch) == (
        TrialPhase.COMPLETED,
        2,
        0.4,
        0.5,
        1,
    )
    assert trial.params == {"lr": 0.1}
    assert trial.points == [(1, 0.5), (2, 0.4)]


def test_paused_trial_resumes_with_new_budget() -> None:
    records = [SPEC, proposal_record("0", budget=1), report_record("0", 1, 0.5, "pause")]
    assert StudyView.from_records(records).trials["0"].state is TrialPhase.PAUSED
    view = StudyView.from_records([*records, proposal_record("0", budget=3, start_from="0")])
    assert (view.trials["0"].state, view.trials["0"].budget, view.trials["0"].start_from) == (
        TrialPhase.TRAINING,
        3,
        None,
    )


def test_copied_trial_names_source_of_state() -> None:
    view = StudyView.from_records([SPEC, proposal_record("0"), proposal_record("1", start_from="0")])
    assert view.trials["1"].start_from == "0"


def test_stopped_and_failed_trials_are_shown() -> None:
    failed = {"kind": "failed", "trial": "1", "error": "ValueError: no", "traceback": "…"}
    view = StudyView.from_records(
        [
            SPEC,
            proposal_record("0"),
            report_record("0", 1, 0.2, "stop"),
            proposal_record("1"),
            failed,
            report_record("1", 0, None, "stop", "failed"),
        ]
    )
    assert view.trials["0"].state is TrialPhase.STOPPED
    assert (view.trials["1"].state, view.trials["1"].error) == (TrialPhase.FAILED, "ValueError: no")
    assert view.counts()[TrialPhase.FAILED] == 1


def test_final_report_keeps_completed_trial_completed() -> None:
    view = StudyView.from_records(
        [
            SPEC,
            proposal_record("0", budget=1),
            report_record("0", 1, 0.5),
            report_record("0", 1, 0.5, "stop", "stopped"),
        ]
    )
    assert view.trials["0"].state is TrialPhase.COMPLETED


def test_trials_rank_by_goal_and_without_value_last() -> None:
    records = [
        proposal_record("0"),
        report_record("0", 1, 0.5),
        proposal_record("1"),
        report_record("1", 1, 0.9),
        proposal_record("2"),
        report_record("2", 1, math.nan),
    ]
    assert [t.id for t in StudyView.from_records([SPEC, *records]).ranked()] == ["1", "0", "2"]
    least = {"kind": "study", "spec": SPEC["spec"] | {"goal": "min"}}  # type: ignore[operator]
    assert [t.id for t in StudyView.from_records([least, *records]).ranked()] == ["0", "1", "2"]


def test_second_study_record_means_driver_restart() -> None:
    assert StudyView.from_records([SPEC, proposal_record("0"), SPEC]).resumed == 1


def test_unknown_records_change_nothing() -> None:
    assert StudyView.from_records([SPEC, {"kind": "from-the-future", "x": 1}]).trials == {}


@given(st.lists(st.integers(0, 5), max_size=30))
def test_repeated_hop_records_count_once(numbers: list[int]) -> None:
    view = StudyView.from_records([SPEC, *(hop_record(n, "0", size=7) for n in numbers)])
    assert view.hops == len(set(numbers)) == len(view.bars)
    assert view.hop_bytes == 7 * view.hops


def test_paused_trials_of_finished_study_are_stopped() -> None:
    view = StudyView.from_records(
        [
            SPEC,
            proposal_record("0", budget=1),
            report_record("0", 1, 0.5, "pause"),
            {"kind": "done", "best": None},
        ]
    )
    assert view.done and view.trials["0"].state is TrialPhase.STOPPED


def test_running_trials_of_ended_study_are_stopped() -> None:
    view = StudyView.from_records(
        [SPEC, proposal_record("0"), proposal_record("1", budget=1), report_record("1", 1, 0.5)]
    )
    view.mark_ended()
    assert not view.done
    assert [view.trials[trial].state for trial in ("0", "1")] == [TrialPhase.STOPPED, TrialPhase.COMPLETED]


def test_run_is_shown_by_id_until_named() -> None:
    view = StudyView.from_records([SPEC, proposal_record("0"), {"kind": "run", "trial": "0", "run": "r1"}])
    assert (view.trials["0"].run, view.trials["0"].run_name) == ("r1", "")
    view.apply({"kind": "submitted", "trial": "0", "run": "r1", "name": "alice/mnist/12"})
    assert view.trials["0"].run_name == "alice/mnist/12"
    view.apply({"kind": "run", "trial": "0", "run": "r2"})
    view.apply({"kind": "submitted", "trial": "0", "run": "r1", "name": "alice/mnist/12"})
    assert (view.trials["0"].run, view.trials["0"].run_name) == ("r2", ""), (
        "a later run has a name of its own"
    )


def test_schedule_of_trials_that_copied_each_other_ends() -> None:
    """It was a recursion without end."""
    records = [SPEC]
    for epoch, copies in enumerate([(None, None), ("1", "0"), (None, "0"), ("1", None), ("1", "0")]):
        for trial, copied in zip("01", copies, strict=True):
            record = proposal_record(trial, lr=epoch)
            record["answer"]["start_from"] = copied or (trial if epoch else None)
            records += [record, report_record(trial, epoch + 1, 0.5)]
    view = StudyView.from_records(records)
    schedule = view.schedule(view.trials["0"])
    assert [(name, entry.from_epoch, entry.params["lr"]) for name, entry in schedule] == [
        ("1", 0, 0),
        ("0", 1, 1),
        ("1", 2, 2),
        ("1", 3, 3),
        ("0", 4, 4),
    ]

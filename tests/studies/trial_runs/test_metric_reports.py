"""Reports of trials from the streams of their runs: complete and in order, for any chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.ids import RunId, TrialId
from hopyard.domain.metric_records import NO_STEP, POINT, pack_definition, pack_point, series_id
from hopyard.studies.trainer import BudgetReached, EpochReported, TrainerEvent, TrialFailed, TrialStopped
from hopyard.studies.trial_runs.metric_reports import MetricReport, MetricStreamParser
from hopyard.studies.trial_runs.report_unit import UnitSettings
from hopyard.studies.trial_runs.trial_run import TrialRun


def logged(*calls: tuple[int | None, dict[str, float]]) -> bytes:
    """Returns the bytes that `hop.log` writes: the points of one call share one time."""
    data, known_series = b"", set()
    for at, (step, metrics) in enumerate(calls):
        for name, value in metrics.items():
            data += b"" if name in known_series else pack_definition(name)
            known_series.add(name)
            data += pack_point(POINT, series_id(name), NO_STEP if step is None else step, float(at), value)
    return data


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.dictionaries(st.sampled_from(["acc", "loss", "lr"]), st.floats(0, 1), min_size=1),
        ),
        max_size=12,
    ),
    st.data(),
)
def test_reports_are_independent_of_chunk_boundaries(
    calls: list[tuple[int, dict[str, float]]], data: st.DataObject
) -> None:
    whole = logged(*calls)  # type: ignore[arg-type]
    expected, latest = [], {}
    for step, metrics in calls:
        latest |= metrics
        if "acc" in metrics:
            expected.append((step, metrics["acc"]))
    at = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    stream = MetricStreamParser("acc")
    rows: list[MetricReport] = []
    for begin, end in zip([0, *at], [*at, len(whole)], strict=True):
        rows += stream.parse(whole[begin:end])
    assert [(row.step, row.metrics["acc"]) for row in rows] == expected
    assert stream.names == set(latest)


def test_report_contains_metrics_logged_with_it() -> None:
    (row, second) = MetricStreamParser("acc").parse(
        logged((0, {"lr": 0.1}), (0, {"acc": 0.5, "loss": 2.0}), (1, {"loss": 1.0, "acc": 0.6}))
    )
    assert row == MetricReport(0, {"lr": 0.1, "acc": 0.5, "loss": 2.0})
    assert second == MetricReport(1, {"lr": 0.1, "acc": 0.6, "loss": 1.0})


def test_damaged_stream_is_read_up_to_damage() -> None:
    stream = MetricStreamParser("acc")
    assert len(stream.parse(logged((0, {"acc": 0.5})) + b"\xff damage")) == 1
    assert stream.parse(logged((1, {"acc": 0.5}))) == []


def make_trial_run(**fields: Any) -> TrialRun:
    return TrialRun(
        **{
            "run": RunId("run-one"),
            "trial": TrialId("3"),
            "budget": 3,
            "metric": "acc",
            "unit": UnitSettings(fields.pop("last_epoch", 3)),
            **fields,
        }
    )


def add_events(
    run: TrialRun, *names: str, attempt: int = 1, positions: Sequence[tuple[float, int]] = ()
) -> list[TrainerEvent]:
    """Adds the events of a script that takes these parameters, and the positions of its `hop.loop`."""
    events: list[dict[str, Any]] = (
        [{"t": 0.0, "kind": "params", "values": dict.fromkeys(names, 1)}] if names else []
    )
    events += [
        {"t": at, "kind": "progress", "done": done, "total": run.unit.last, "unit": "epoch"}
        for at, done in positions
    ]
    data = "".join(json.dumps(event) + "\n" for event in events).encode()
    return add_metrics(run, data, attempt=attempt, stream="events")


def update_run(
    run: TrialRun, phase: str = "running", *, attempt: int = 1, step: int | None = None, reason: str = ""
) -> None:
    exit = {"reason": reason} if reason else None
    run.update(
        {
            "name": "a/b/1",
            "phase": phase,
            "exit": exit,
            "attempt": f"run-run.{attempt}",
            "resumed_from_step": step,
        }
    )


def add_metrics(
    run: TrialRun, data: bytes, *, attempt: int = 1, rank: int = 0, stream: str = "metrics"
) -> list[TrainerEvent]:
    key = (f"run-run.{attempt}", rank, stream)
    return run.add_data(key, run.cursors.get(key, 0), data)


def epochs_of(events: list[TrainerEvent]) -> list[int]:
    return [event.step for event in events if isinstance(event, EpochReported)]


def test_retry_after_lost_attempt_repeats_no_report() -> None:
    run = make_trial_run()
    update_run(run)
    add_events(run, "width")
    assert epochs_of(add_metrics(run, logged((0, {"acc": 0.1}), (1, {"acc": 0.2})))) == [1, 2]
    update_run(run, attempt=2, step=1)  # from the checkpoint of the first epoch
    assert epochs_of(add_metrics(run, logged((1, {"acc": 0.2}), (2, {"acc": 0.3})), attempt=2)) == [3]
    update_run(run, "succeeded", attempt=2)
    assert run.finish() == [BudgetReached(TrialId("3"), 3)]


def test_batch_counting_script_trains_every_epoch_after_loss() -> None:
    """The checkpoint is older than the last report. Repeated reports were counted once more, so the last
    epoch was never trained."""
    run = make_trial_run(budget=4, last_epoch=4)
    update_run(run)
    add_events(run, "width")
    assert epochs_of(
        add_metrics(run, logged((500, {"acc": 0.1}), (1000, {"acc": 0.2}), (1500, {"acc": 0.3})))
    ) == [
        1,
        2,
        3,
    ]
    update_run(run, attempt=2, step=1000)
    assert epochs_of(add_metrics(run, logged((1500, {"acc": 0.3})), attempt=2)) == []
    update_run(run, attempt=3, step=400)  # from before the first report
    events = add_metrics(
        run,
        logged((500, {"acc": 0.1}), (1000, {"acc": 0.2}), (1500, {"acc": 0.3}), (2000, {"acc": 0.4})),
        attempt=3,
    )
    assert [
        (report.step, report.metrics["acc"]) for report in events if isinstance(report, EpochReported)
    ] == [(4, 0.4)]


def test_duplicate_and_early_bytes_are_ignored() -> None:
    run, key, data = (
        make_trial_run(),
        ("run-run.1", 0, "metrics"),
        logged((0, {"acc": 0.1}), (1, {"acc": 0.2})),
    )
    update_run(run)
    add_events(run, "width")
    assert run.add_data(key, 5, data) == []
    assert epochs_of(run.add_data(key, 0, data)) == [1, 2]
    assert run.add_data(key, 0, data) == []
    assert epochs_of(run.add_data(key, 0, data + logged((2, {"acc": 0.3})))) == [3]


def test_reports_of_one_rank_represent_gang() -> None:
    run = make_trial_run()
    update_run(run)
    assert add_metrics(run, logged((0, {"loss": 1.0}))) == []
    assert epochs_of(add_metrics(run, logged((0, {"acc": 0.1})), rank=1)) == [1]
    assert add_metrics(run, logged((1, {"acc": 0.9})), rank=2) == []
    assert epochs_of(add_metrics(run, pack_point(POINT, series_id("acc"), 1, 9.0, 0.2), rank=1)) == [2]


def test_sparse_reports_are_completed_at_end() -> None:
    run = make_trial_run(budget=9, last_epoch=9)
    update_run(run)
    assert epochs_of(add_metrics(run, logged((2, {"acc": 0.1}), (5, {"acc": 0.2})))) == [2, 5]
    update_run(run, "succeeded")
    assert run.finish() == [EpochReported(TrialId("3"), 9, {"acc": 0.2}), BudgetReached(TrialId("3"), 9)]


def test_unmodified_script_is_judged_by_last_report() -> None:
    run = make_trial_run(budget=1, last_epoch=1, reports_at_end=True)
    update_run(run)
    assert add_metrics(run, logged((0, {"acc": 0.1}), (1, {"acc": 0.7}))) == []
    assert not run.over_budget
    update_run(run, "succeeded")
    assert run.finish() == [EpochReported(TrialId("3"), 1, {"acc": 0.7}), BudgetReached(TrialId("3"), 1)]


def test_copy_continues_epoch_count_of_target() -> None:
    # completed 4 epochs, copies a trial with 2 epochs, and may train 2 more
    run = make_trial_run(budget=6, last_epoch=4, epoch_shift=2)
    run.reported_epoch = 4
    update_run(run, step=2)
    add_events(run, "width")
    assert epochs_of(add_metrics(run, logged((2, {"acc": 0.1}), (3, {"acc": 0.2})))) == [5, 6]


def test_run_beyond_budget_is_detected() -> None:
    run = make_trial_run()
    update_run(run)
    add_events(run, "width")
    assert epochs_of(add_metrics(run, logged(*((step, {"acc": 0.1}) for step in range(5))))) == [1, 2, 3]
    assert run.over_budget
    update_run(run, "cancelled", reason="stopped by request")
    assert run.finish() == [BudgetReached(TrialId("3"), 3)]


@pytest.mark.parametrize(
    ("phase", "reason", "expected"),
    [
        ("failed", "exit code 1: ValueError: no", "run a/b/1: exit code 1: ValueError: no"),
        ("succeeded", "", "run a/b/1 ended, and never reported `acc`; it reported `loss`, `lr`"),
    ],
)
def test_failed_run_sets_trial_error(phase: str, reason: str, expected: str) -> None:
    run = make_trial_run()
    update_run(run)
    add_metrics(run, logged((0, {"loss": 1.0, "lr": 0.1})))
    update_run(run, phase, reason=reason)
    assert run.finish() == [TrialFailed(TrialId("3"), expected)]


def test_stopped_run_is_no_failure_and_its_last_report_counts() -> None:
    run = make_trial_run()
    update_run(run)
    add_events(run, "epochs")
    assert add_metrics(run, logged((None, {"acc": 0.5}))) == []  # no epoch
    update_run(run, "cancelled", reason="stopped by request")
    assert run.finish() == [
        TrialStopped(TrialId("3"), "run a/b/1 was stopped: stopped by request", {"acc": 0.5})
    ]


def test_run_without_metrics_gets_logging_hint() -> None:
    run = make_trial_run()
    update_run(run, "succeeded")
    (failed,) = run.finish()
    assert isinstance(failed, TrialFailed)
    assert failed.error.endswith(
        "it reported no metric at all (`hop.log(…)`, TensorBoard, or printed lines with `--metric-line`)"
    )


def test_reports_of_ended_run_are_ignored() -> None:
    run = make_trial_run(end_requested=True)
    update_run(run, "cancelled", reason="stopped")
    assert run.finish() == []
    assert run.is_finished

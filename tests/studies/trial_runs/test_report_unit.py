"""The unit of a trial's reports. A script that takes its budget is never cut short."""

from __future__ import annotations

import pytest

from hopyard.domain.ids import TrialId
from hopyard.studies.trainer import BudgetReached, EpochReported
from hopyard.studies.trial_runs.metric_reports import MetricReport
from hopyard.studies.trial_runs.report_unit import ReportUnit, UnitSettings
from hopyard.studies.trial_runs.run_events import LoopProgressEvent, RunEvents
from tests.studies.trial_runs.test_metric_reports import (
    add_events,
    add_metrics,
    epochs_of,
    logged,
    make_trial_run,
    update_run,
)


def units(unit: ReportUnit, steps: list[int | None], *, takes_budget: bool | None) -> list[int]:
    return [
        epoch
        for at, step in enumerate(steps)
        for epoch, _ in unit.add(MetricReport(step, {}, float(at)), takes_budget=takes_budget)
    ]


@pytest.mark.parametrize(
    ("start", "last", "steps", "epochs"),
    [
        (0, 4, [0, 1, 2, 3], [1, 2, 3, 4]),  # for epoch in range(p.epochs)
        (0, 4, [1, 2, 3, 4], [1, 2, 3, 4]),
        (0, 9, [3, 6, 9], [3, 6, 9]),  # every third epoch
        (2, 4, [2, 3], [3, 4]),  # resumed from the checkpoint of epoch 2
        (2, 4, [3, 4], [3, 4]),
        (0, 2, [0, 1, 2, 3], [1, 2, 3, 4]),  # runs longer than its budget
    ],
)
@pytest.mark.parametrize("takes_budget", [True, False, None])
def test_steps_within_the_budget_are_epochs(
    start: int, last: int, steps: list[int | None], epochs: list[int], takes_budget: bool | None
) -> None:
    assert units(ReportUnit(start, UnitSettings(last)), steps, takes_budget=takes_budget) == epochs


@pytest.mark.parametrize(("first", "offset"), [([0, 1], 1), ([1, 2], 0)])
def test_script_that_resumes_from_its_own_files_counts_as_in_its_first_run(
    first: list[int | None], offset: int
) -> None:
    unit = ReportUnit(0, UnitSettings(6))
    assert units(unit, first, takes_budget=True) == [1, 2]
    assert unit.shown_offset == offset
    later: list[int | None] = [3 - offset, 4 - offset]
    assert units(ReportUnit(0, UnitSettings(6, offset=offset)), later, takes_budget=True) == [3, 4]


@pytest.mark.parametrize(
    ("start", "last", "steps", "epochs"),
    [(0, 4, [None] * 4, [1, 2, 3, 4]), (2, 4, [None] * 2, [3, 4]), (0, 3, [500, 1000, 1500], [1, 2, 3])],
)
def test_other_reports_are_counted_only_of_a_script_without_budget(
    start: int, last: int, steps: list[int | None], epochs: list[int]
) -> None:
    assert units(ReportUnit(start, UnitSettings(last)), steps, takes_budget=False) == epochs
    assert units(ReportUnit(start, UnitSettings(last)), steps, takes_budget=True) == []
    unknown = ReportUnit(start, UnitSettings(last))
    assert units(unknown, steps, takes_budget=None) == []
    assert unknown.is_held
    assert [epoch for epoch, _ in unknown.release(takes_budget=False)] == epochs


@pytest.mark.parametrize(
    ("settings", "steps", "expected"),
    [
        (UnitSettings(4, steps_per_epoch=300), [100, 200, 300, 400, 600], [0, 0, 1, 1, 2]),
        (UnitSettings(4, steps_per_epoch=300), [299, 599], [1, 2]),  # the last batch, counted from 0
        (UnitSettings(1200, counts_steps=True), [100, 200, 1200], [100, 200, 1200]),
        (UnitSettings(4, steps_are_epochs=False), [1, 2, 3], []),
    ],
)
def test_given_unit_of_steps_is_used_at_once(
    settings: UnitSettings, steps: list[int | None], expected: list[int]
) -> None:
    assert units(ReportUnit(0, settings), steps, takes_budget=True) == expected


def test_position_of_the_loop_releases_the_last_report_of_an_epoch() -> None:
    unit = ReportUnit(0, UnitSettings(3))
    reports = [MetricReport(100 * number, {}, float(number)) for number in range(1, 8)]
    for report in reports[:3]:
        assert unit.add(report, takes_budget=True) == []
    unit.add_positions(
        [LoopProgressEvent(0.5, 0, 3), LoopProgressEvent(3.5, 1, 3), LoopProgressEvent(3.6, 9, 10)]
    )
    assert unit.release(takes_budget=True) == []  # a report before the position may still arrive
    assert unit.add(reports[3], takes_budget=True) == [(1, reports[2])]
    assert unit.add(reports[4], takes_budget=True) == []
    unit.add_positions([LoopProgressEvent(5.5, 2, 3)])
    assert unit.add(reports[5], takes_budget=True) == [(2, reports[4])]


def test_events_are_parsed_from_any_chunks() -> None:
    data = (
        b'{"t":1.0,"kind":"params","values":{"lr":0.1}}\nnoise\n{"kind":"progress","done":"x"}\n'
        b'{"t":2.0,"kind":"progress","done":1,"total":4}\n{"t":3.0,"kind":"params","values":{"epochs":4}}\n'
    )
    for size in (1, 7, len(data)):
        events = RunEvents()
        assert events.declared is None
        for start in range(0, len(data), size):
            events.parse(data[start : start + size])
        assert events.declared == {"lr", "epochs"}
        assert events.take_positions() == [LoopProgressEvent(2.0, 1, 4)]
        assert events.take_positions() == []


def test_script_that_reports_several_times_an_epoch_is_never_cut() -> None:
    """It was stopped at its third report, in a third of its budget."""
    run = make_trial_run()
    update_run(run)
    add_events(run, "lr", "epochs")
    assert add_metrics(run, logged(*((100 * n, {"acc": n / 10}) for n in range(1, 10)))) == []
    assert not run.over_budget
    assert run.has_uncounted_reports
    update_run(run, "succeeded")
    assert run.finish() == [EpochReported(TrialId("3"), 3, {"acc": 0.9}), BudgetReached(TrialId("3"), 3)]


def test_steps_that_begin_as_epochs_and_exceed_them_do_not_end_a_trial() -> None:
    run = make_trial_run()
    update_run(run)
    add_events(run, "epochs")
    assert epochs_of(add_metrics(run, logged(*((n, {"acc": n / 10}) for n in range(1, 10))))) == [1, 2]
    assert not run.over_budget
    assert run.steps_exceed_budget
    update_run(run, "succeeded")
    assert run.finish() == [EpochReported(TrialId("3"), 3, {"acc": 0.9}), BudgetReached(TrialId("3"), 3)]


def test_report_of_the_budget_counts_at_the_end_even_if_the_run_fails_then() -> None:
    run = make_trial_run()
    update_run(run)
    add_events(run, "epochs")
    assert epochs_of(add_metrics(run, logged(*((n, {"acc": n / 10}) for n in (1, 2, 3))))) == [1, 2]
    update_run(run, "failed", reason="exit code 1")
    reported, _ = run.finish()
    assert reported == EpochReported(TrialId("3"), 3, {"acc": 0.3})


def test_script_found_to_take_no_budget_is_counted_and_stopped() -> None:
    run = make_trial_run()
    update_run(run)
    assert epochs_of(add_metrics(run, logged(*((n, {"acc": n / 10}) for n in range(5))))) == [1, 2]
    assert not run.over_budget
    assert add_events(run, "width") == [EpochReported(TrialId("3"), 3, {"acc": 0.2})]
    assert run.over_budget


def test_budget_in_the_command_is_taken_although_hop_params_declares_others() -> None:
    run = make_trial_run(budget_in_command=True)
    update_run(run)
    add_events(run, "lr")
    assert add_metrics(run, logged(*((None, {"acc": n / 10}) for n in range(1, 10)))) == []
    assert not run.over_budget
    update_run(run, "succeeded")
    assert run.finish() == [EpochReported(TrialId("3"), 3, {"acc": 0.9}), BudgetReached(TrialId("3"), 3)]

"""The driver: its requests, reports, journal records and training; a kill at any record changes none of
them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.config.schemas.study_json import study_to_json
from hopyard.domain.ids import TrialId
from hopyard.domain.space import Choice, Parameter, Space, Uniform
from hopyard.domain.study import Goal, Parallel, SearcherSpec, StopRules, StudySpec
from hopyard.domain.trial import Proposal, Report, SearchState, Verdict
from hopyard.errors import Conflict, StudyFailed
from hopyard.searchers.registry import build
from hopyard.studies.driver import StudyDriver
from hopyard.studies.study_state import StudyState, TrialPhase
from hopyard.studies.trainer import (
    BudgetReached,
    EpochReported,
    TrainerEvent,
    TrialFailed,
    TrialStopped,
    TrialWork,
)
from hopyard.studies.view.study_view import StudyView

SPACE = Space((Parameter("lr", Uniform(1e-4, 1.0, log=True)), Parameter("kind", Choice(("a", "b")))))
Measure = Callable[[Mapping[str, Any], int], Mapping[str, float]]


def loss(params: Mapping[str, Any], epoch: int) -> Mapping[str, float]:
    return {
        "loss": abs(math.log10(params["lr"]) + 2) / epoch + (params["kind"] == "b") * 0.1,
        "other": float(epoch),
    }


def study(
    searcher: str = "random",
    /,
    *,
    trials: int | None = 6,
    epochs: int = 4,
    concurrent: int = 1,
    **options: Any,
) -> StudySpec:
    return StudySpec(
        "s",
        SPACE,
        "loss",
        Goal.MIN,
        Parallel.TRIALS,
        SearcherSpec(searcher, options),
        trials,
        concurrent,
        epochs,
        seed=4,
    )


class Killed(BaseException):
    """The process was killed."""


@dataclass
class MemoryJournal:
    """A journal that outlives its drivers. kills: the numbers of writes at which the process is killed, just
    after the record is written for odd numbers, just before for even numbers."""

    kills: Sequence[int] = ()
    records: list[dict[str, Any]] = field(default_factory=list)
    writes: int = 0

    def write(self, kind: str, /, **fields: Any) -> None:
        self.writes += 1
        killed = self.writes in self.kills
        if not (killed and self.writes % 2 == 0):
            self.records.append(json.loads(json.dumps({"kind": kind, **fields})))
        if killed:
            raise Killed

    def decisions(self) -> list[Any]:
        return [
            r.get("answer") or (r["report"], r["verdict"])
            for r in self.records
            if r["kind"] in ("asked", "told")
        ]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]


@dataclass
class FakeTrainer:
    """Trains outside the driver: a started trial continues without the driver."""

    measure: Measure
    concurrent: int
    done: dict[TrialId, int] = field(default_factory=dict)  # epochs
    works: dict[TrialId, TrialWork] = field(default_factory=dict)
    kept: dict[TrialId, bool] = field(default_factory=dict)
    news: list[TrainerEvent] = field(default_factory=list)

    def free_capacity(self) -> int:
        return max(self.concurrent - len(self.works), 0)

    def start(self, work: TrialWork) -> None:
        assert work.done_epochs <= work.budget
        self.works[work.trial] = work

    def end(self, trial: TrialId, *, keep_state: bool) -> None:
        self.works.pop(trial, None)
        self.kept[trial] = keep_state
        self.news = [event for event in self.news if event.trial != trial]

    def wait(self, timeout_s: float) -> list[TrainerEvent]:
        for trial, work in list(self.works.items()):
            epoch = self.done.get(trial, 0) + 1
            if epoch <= work.budget:
                self.done[trial] = epoch
            self.news += self._events_of_epoch(work, min(epoch, work.budget))
        news, self.news = self.news, []
        return news

    def _events_of_epoch(self, work: TrialWork, epoch: int) -> list[TrainerEvent]:
        """Returns all notifications so far, as a new reader sees them."""
        news: list[TrainerEvent] = []
        for step in range(1, epoch + 1):
            result = self.measure(work.params, step)
            if "raises" in result:
                return [*news, TrialFailed(work.trial, "ValueError: no", "Traceback …")]
            if result:
                news.append(EpochReported(work.trial, step, result))
        return [*news, BudgetReached(work.trial, work.budget)] if epoch == work.budget else news

    def close(self, *, completed: bool) -> None:
        raise NotImplementedError


class RecordingListener:
    """Records all notifications."""

    def __init__(self) -> None:
        self.notifications: list[Any] = []

    def trial_started(self, proposal: Proposal) -> None:
        self.notifications.append(("began", proposal.trial, proposal.budget))

    def trial_reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None:
        self.notifications.append(("reported", trial, step, dict(metrics)))

    def trial_ended(self, trial: TrialId, phase: TrialPhase, reason: str) -> None:
        self.notifications.append(("ended", trial, phase, reason))

    def study_stopped(self, reason: str) -> None:
        self.notifications.append(("stopped", reason))

    def study_updated(self, state: StudyState) -> None:
        assert state.trials is not None


def run_study(
    spec: StudySpec,
    measure: Measure = loss,
    *,
    kills: Sequence[int] = (),
    searcher: Callable[[], Any] | None = None,
    elapsed_s: Callable[[FakeTrainer], float] = lambda _: 0.0,
) -> tuple[MemoryJournal, FakeTrainer, RecordingListener]:
    """Runs the study to its end and restarts it after each kill."""
    journal, trainer, listener = (
        MemoryJournal(kills),
        FakeTrainer(measure, spec.max_live_trials),
        RecordingListener(),
    )
    for _ in range(len(kills) + 1):
        trainer.works.clear()  # unobserved until they are resumed
        trainer.news.clear()
        try:
            fresh = searcher() if searcher is not None else build(spec, pytest.fail)
            driver = StudyDriver(
                spec,
                fresh,
                journal=journal,
                past_records=list(journal.records),
                listener=listener,
                is_stopping=lambda: False,
                elapsed_s=lambda: elapsed_s(trainer),
            )
            assert driver.run(trainer)
        except Killed:
            continue
        return journal, trainer, listener
    raise AssertionError("it never ended")


SEARCHERS = [
    ("random", {}, 6),
    ("asha", {"eta": 2}, 6),
    ("halving", {"eta": 2}, 8),
    ("hyperband", {"eta": 2}, None),
    ("pbt", {"interval": 1}, 4),
    ("median", {"of": "random", "least": 2}, 6),
]


@pytest.mark.parametrize(("name", "options", "trials"), SEARCHERS)
def test_every_searcher_runs_to_completion(name: str, options: dict[str, Any], trials: int | None) -> None:
    journal, trainer, listener = run_study(study(name, trials=trials, **options))
    ended = [notification for notification in listener.notifications if notification[0] == "ended"]
    assert len({notification[1] for notification in ended}) == len(ended)
    assert trainer.works == {}
    values = [r["report"]["value"] for r in journal.of_kind("told") if r["report"]["value"] is not None]
    (done,) = journal.of_kind("done")
    assert done["best"]["value"] == min(values)
    reports = [(r["report"]["trial"], r["report"]["step"]) for r in journal.of_kind("told")]
    assert len(set(reports)) == len(reports)


@settings(max_examples=60)
@given(st.sampled_from(SEARCHERS), st.lists(st.integers(1, 60), min_size=1, max_size=4, unique=True))
def test_kill_at_any_record_changes_no_decision(
    searcher: tuple[str, dict[str, Any], int | None], kills: list[int]
) -> None:
    name, options, trials = searcher
    spec = study(name, trials=trials, **options)
    uninterrupted, _, listener_of_killed = run_study(spec)
    journal, trainer, listener = run_study(spec, kills=kills)
    assert journal.decisions() == uninterrupted.decisions()
    assert journal.of_kind("done")[-1]["best"] == uninterrupted.of_kind("done")[-1]["best"]
    assert trainer.works == {}
    assert {notification[1] for notification in listener.notifications if notification[0] == "ended"} <= {
        notification[1] for notification in listener_of_killed.notifications if notification[0] == "ended"
    }


@settings(max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=3, unique=True))
def test_concurrent_trials_complete_after_any_kill(kills: list[int]) -> None:
    journal, _, _ = run_study(study("asha", concurrent=3, eta=2), kills=kills)
    proposals = [(r["answer"]["trial"], r["answer"]["budget"]) for r in journal.of_kind("asked")]
    assert len(set(proposals)) == len(proposals)
    reports = [(r["report"]["trial"], r["report"]["step"]) for r in journal.of_kind("told")]
    assert len(set(reports)) == len(reports)


def test_journal_record_is_written_before_its_effect() -> None:
    spec, journal = study(), MemoryJournal(kills=[3])
    trainer = FakeTrainer(loss, 1)
    driver = StudyDriver(
        spec,
        build(spec, pytest.fail),
        journal=journal,
        past_records=(),
        listener=RecordingListener(),
        is_stopping=lambda: False,
    )
    with pytest.raises(Killed):
        driver.run(trainer)
    assert [record["kind"] for record in journal.records] == ["asked", "told", "told"]


def test_searcher_with_different_answers_is_refused_on_resume() -> None:
    journal, _, _ = run_study(study())
    spec = StudySpec(
        **{**{name: getattr(study(), name) for name in StudySpec.__dataclass_fields__}, "seed": 5}
    )
    with pytest.raises(Conflict, match="event 0"):
        StudyDriver(
            spec,
            build(spec, pytest.fail),
            journal=MemoryJournal(),
            past_records=journal.records,
            listener=RecordingListener(),
            is_stopping=lambda: False,
        )


# -- trials that go wrong ------------------------------------------------------------------------------------


def failing_measure(kind: str, wrong: Mapping[str, float]) -> Measure:
    """Returns `wrong` for trials of this kind, and `loss` for all others."""
    return lambda params, epoch: wrong if params["kind"] == kind else loss(params, epoch)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"loss": math.nan}, "its `loss` was not a number (NaN) after epoch 1"),
        ({"loss": math.inf}, "its `loss` was inf after epoch 1"),
        ({"acc": 1.0, "mae": 2.0}, "it reported no `loss`, but `acc`, `mae`"),
        ({"raises": 1.0}, "ValueError: no"),
        ({}, "it never reported `loss`"),
    ],
)
def test_a_trial_fails_alone_with_its_error(wrong: Mapping[str, float], expected: str) -> None:
    journal, trainer, listener = run_study(study(trials=8), failing_measure("a", wrong))
    failed = journal.of_kind("failed")
    assert {record["error"] for record in failed} == {expected}
    kinds = {r["answer"]["trial"]: r["answer"]["params"]["kind"] for r in journal.of_kind("asked")}
    assert {record["trial"] for record in failed} == {trial for trial, kind in kinds.items() if kind == "a"}
    assert 0 < len(failed) < 8
    assert all(trainer.kept[record["trial"]] is False for record in failed)
    assert journal.of_kind("done")[0]["best"]["params"]["kind"] == "b"
    assert {
        notification[1]
        for notification in listener.notifications
        if notification[:1] == ("ended",) and notification[2] is TrialPhase.FAILED
    } == {record["trial"] for record in failed}


@pytest.mark.parametrize("concurrent", [1, 5])
def test_study_that_can_only_fail_ends_early_with_reason(concurrent: int) -> None:
    with pytest.raises(
        StudyFailed,
        match=(
            rf"all of the first {max(12, 3 * concurrent)} trials failed: its `loss` was not a number "
            r"\(NaN\) after epoch 1"
        ),
    ) as error:
        run_study(study(trials=50, concurrent=concurrent), lambda params, epoch: {"loss": math.nan})
    assert error.value.hints
    with pytest.raises(StudyFailed, match=f"all of the first {max(3, concurrent)} trials failed: ValueError"):
        run_study(study(trials=50, concurrent=concurrent), lambda params, epoch: {"raises": 1.0})


def test_diverged_first_trials_do_not_end_study() -> None:
    def diverges(params: Mapping[str, Any], epoch: int) -> Mapping[str, float]:
        seen.append(params["lr"])
        return {"loss": math.nan if len(seen) <= 8 else 1.0}

    seen: list[float] = []
    journal, _, _ = run_study(study(trials=12, epochs=1), diverges)
    assert len(journal.of_kind("failed")) == 8
    assert journal.of_kind("done")


def test_number_of_failed_trials_is_limited() -> None:
    spec = replace(study(trials=20), max_failures=1)
    with pytest.raises(StudyFailed, match="2 trials failed, and `max_failures` is 1: ValueError: no"):
        run_study(spec, failing_measure("a", {"raises": 1.0}))


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (StopRules(target=1e9), "its target of 1e+09 is reached"),
        (StopRules(patience=2), "no better value in 2 trials (patience)"),
        (StopRules(time_s=60.0), "its time of 60 s is over"),
    ],
)
@pytest.mark.parametrize("kills", [[], [4], [5, 9]])
def test_stop_rule_ends_study_that_succeeds(rules: StopRules, reason: str, kills: list[int]) -> None:
    spec = replace(study(trials=30, concurrent=2), stop=rules)
    journal, trainer, listener = run_study(
        spec, kills=kills, elapsed_s=lambda trainer: 10.0 * len(trainer.done)
    )
    assert ("stopped", reason) in listener.notifications
    assert len(journal.of_kind("asked")) < 30
    assert journal.of_kind("done")[0]["best"] is not None
    assert not trainer.works
    view = StudyView.from_records([{"kind": "study", "spec": study_to_json(spec)}, *journal.records])
    assert view.stop_rule == reason
    stopped = [trial.stop_reason for trial in view.trials.values() if trial.state is TrialPhase.STOPPED]
    assert set(stopped) <= {reason}


def test_trial_stopped_by_hand_keeps_its_value() -> None:
    class StoppedByHand(FakeTrainer):
        def _events_of_epoch(self, work: TrialWork, epoch: int) -> list[TrainerEvent]:
            if work.trial != "1":
                return super()._events_of_epoch(work, epoch)
            return [TrialStopped(work.trial, "run a/b/3 was stopped: by request", {"loss": -5.0})]

    spec, listener, journal = study(trials=3), RecordingListener(), MemoryJournal()
    driver = StudyDriver(
        spec,
        build(spec, pytest.fail),
        journal=journal,
        past_records=[],
        listener=listener,
        is_stopping=lambda: False,
    )
    assert driver.run(StoppedByHand(loss, 1))
    assert driver.state.trials[TrialId("1")].phase is TrialPhase.STOPPED
    assert driver.best is not None and (driver.best.trial, driver.best.value) == ("1", -5.0)
    assert not journal.of_kind("failed")
    view = StudyView.from_records([{"kind": "study", "spec": study_to_json(spec)}, *journal.records])
    assert (view.trials["1"].state, view.trials["1"].best) == (TrialPhase.STOPPED, -5.0)


def test_user_stops_a_trial_and_the_others_continue() -> None:
    spec, listener, journal = study(trials=3, epochs=4), RecordingListener(), MemoryJournal()
    trainer = FakeTrainer(loss, 1)

    def stop_requests() -> set[TrialId]:
        reports = [r for r in journal.of_kind("told") if r["report"]["trial"] == "1"]
        return {TrialId("1"), TrialId("9")} if len(reports) >= 2 else set()

    driver = StudyDriver(
        spec,
        build(spec, pytest.fail),
        journal=journal,
        past_records=[],
        listener=listener,
        is_stopping=lambda: False,
        stop_requests=stop_requests,
    )
    assert driver.run(trainer)
    phases = {trial: state.phase for trial, state in driver.state.trials.items()}
    assert phases == {"0": TrialPhase.COMPLETED, "1": TrialPhase.STOPPED, "2": TrialPhase.COMPLETED}
    assert journal.of_kind("told")[-1]["report"]["trial"] == "2"
    assert [r["reason"] for r in journal.of_kind("told") if "reason" in r] == ["it was stopped by request"]
    assert not journal.of_kind("failed") and not trainer.works


def test_study_stopped_before_any_report_names_the_reason() -> None:
    spec = replace(study(trials=3), stop=StopRules(time_s=1.0))
    with pytest.raises(StudyFailed, match="every trial was stopped before it reported `loss`"):
        run_study(spec, lambda _params, _step: {}, elapsed_s=lambda trainer: 9.0 if trainer.works else 0.0)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("`evaluate` returned a `float`\nhint: return a dictionary", "`evaluate` returned a `float`"),
        ("run a/b/{}: exit code 1: no", "exit code 1: no"),
        ("run a/b/{} ended, and never reported `acc`", "ended, and never reported `acc`"),
    ],
)
def test_equal_trial_errors_are_reported_once_without_hints(error: str, expected: str) -> None:
    class Hints(FakeTrainer):
        def _events_of_epoch(self, work: TrialWork, epoch: int) -> list[TrainerEvent]:
            return [TrialFailed(work.trial, error.format(int(work.trial) + 2))]

    spec = study(trials=3, concurrent=3)
    driver = StudyDriver(
        spec,
        build(spec, pytest.fail),
        journal=MemoryJournal(),
        past_records=[],
        listener=RecordingListener(),
        is_stopping=lambda: False,
    )
    with pytest.raises(
        StudyFailed, match=re.escape(f"all of the first 3 trials failed: {expected} (trial 0 and 2 more)")
    ):
        driver.run(Hints(loss, 3))


def test_short_study_with_only_failures_fails() -> None:
    with pytest.raises(StudyFailed, match="all 2 trials failed"):
        run_study(study(trials=2), lambda params, epoch: {"raises": 1.0})


def test_study_whose_trials_all_fail_after_reports_fails() -> None:
    def breaks(params: Mapping[str, Any], epoch: int) -> Mapping[str, float]:
        return {"raises": 1.0} if epoch == 2 else {"loss": 0.5}

    with pytest.raises(StudyFailed, match="all 2 trials failed: ValueError"):
        run_study(study(trials=2), breaks)
    with pytest.raises(StudyFailed, match="all of the first 3 trials failed: ValueError"):
        run_study(study(trials=50, concurrent=1), breaks)


def test_sparsely_reporting_trial_is_judged_by_newest_value() -> None:
    journal, _, _ = run_study(
        study(trials=2), lambda params, epoch: loss(params, epoch) if epoch == 2 else {}
    )
    reports = [r["report"] for r in journal.of_kind("told") if r["report"]["trial"] == "0"]
    assert [report["step"] for report in reports] == [2, 4]
    assert reports[0]["value"] == reports[1]["value"]


def test_searcher_waiting_without_running_trials_fails() -> None:
    class Waits:
        def ask(self) -> SearchState:
            return SearchState.WAIT

        def tell(self, report: Report, /) -> Verdict:
            raise NotImplementedError

    with pytest.raises(StudyFailed, match="no trial is running"):
        run_study(study(), searcher=Waits)


def test_driver_stops_on_request_and_resumes_later() -> None:
    spec, journal, trainer = study(), MemoryJournal(), FakeTrainer(loss, 1)
    looks = iter([False] * 9 + [True] * 9)
    driver = StudyDriver(
        spec,
        build(spec, pytest.fail),
        journal=journal,
        past_records=(),
        listener=RecordingListener(),
        is_stopping=lambda: next(looks),
    )
    assert not driver.run(trainer)
    assert journal.of_kind("done") == []
    second_driver = StudyDriver(
        spec,
        build(spec, pytest.fail),
        journal=journal,
        past_records=list(journal.records),
        listener=RecordingListener(),
        is_stopping=lambda: False,
    )
    assert second_driver.run(trainer)
    assert journal.decisions() == run_study(spec)[0].decisions()


def test_copyable_states_are_retained_and_others_dropped() -> None:
    _, random, _ = run_study(study("random"))
    assert set(random.kept.values()) == {False}
    _, population, _ = run_study(study("pbt", trials=4, interval=2))
    assert set(population.kept.values()) == {True}

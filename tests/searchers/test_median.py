"""The median stopping rule, by hand."""

from __future__ import annotations

from hopyard.domain.ids import TrialId
from hopyard.domain.study import Goal
from hopyard.domain.trial import Proposal, Report, SearchState, TrialOutcome, Verdict
from hopyard.searchers.asha import Asha
from hopyard.searchers.median import MedianStopping
from hopyard.searchers.random_search import Random
from hopyard.testing.searcher_contract import EXAMPLE_SPACE


def around_random(
    goal: Goal = Goal.MIN, *, grace: int = 1, least: int = 2, trials: int = 5
) -> MedianStopping:
    inner = Random(space=EXAMPLE_SPACE, goal=goal, trials=trials, max_epochs=4, seed=0)
    searcher = MedianStopping(
        space=EXAMPLE_SPACE,
        goal=goal,
        trials=trials,
        max_epochs=4,
        seed=0,
        inner=inner,
        grace=grace,
        least=least,
    )
    for _ in range(trials):
        assert isinstance(searcher.ask(), Proposal)
    return searcher


def report(searcher: MedianStopping, trial: int, *values: float, first: int = 1) -> list[Verdict]:
    return [
        searcher.tell(Report(TrialId(str(trial)), step, value)) for step, value in enumerate(values, first)
    ]


GO, STOP = Verdict.CONTINUE, Verdict.STOP


def test_trial_with_best_below_median_of_means_is_stopped() -> None:
    searcher = around_random()
    assert report(searcher, 0, 9, 1, 1, 1) == [GO] * 4
    assert report(searcher, 1, 9, 3, 3, 3) == [GO] * 4
    # At step 2 the means are 5 and 6, their median 5.5: 5.5 is not worse. With 7.25 of trial 2 it is 6: 6.1
    # is worse.
    assert report(searcher, 2, 9, 5.5) == [GO, GO]
    assert report(searcher, 3, 9, 6.1) == [GO, STOP]
    assert report(searcher, 3, 0.0, first=3) == [STOP], "late news of one that was stopped"
    assert report(searcher, 4, 1, 100, 100) == [GO, GO, GO], "its best counts, not its newest"


def test_goal_max_is_supported() -> None:
    searcher = around_random(Goal.MAX)
    report(searcher, 0, 1, 1, 1, 1)
    report(searcher, 1, 3, 3, 3, 3)
    assert report(searcher, 2, 2, 2) == [GO, GO]
    assert report(searcher, 3, 1.9, 1.9) == [GO, STOP]


def test_no_trial_is_stopped_in_grace_or_with_few_trials_or_at_budget() -> None:
    patient = around_random(grace=3)
    report(patient, 0, 1, 1, 1, 1)
    report(patient, 1, 1, 1, 1, 1)
    assert report(patient, 2, 9, 9, 9, 9) == [GO] * 4
    few = around_random(least=3)
    report(few, 0, 1, 1, 1, 1)
    report(few, 1, 1, 1, 1, 1)
    assert report(few, 2, 9, 9, 9, 9) == [GO] * 4
    assert report(few, 3, 9, 9) == [GO, STOP]


def test_trial_is_compared_only_with_trials_at_same_step() -> None:
    searcher = around_random()
    report(searcher, 0, 1, 1)
    report(searcher, 1, 1, 1)
    assert report(searcher, 2, 9, first=3) == [GO], "at step 3 there is nobody"
    assert report(searcher, 3, 9, first=2) == [STOP]


def test_repeated_steps_count_once() -> None:
    searcher = around_random()
    for trial in (0, 1):
        report(searcher, trial, 1, 1, 1)
        assert report(searcher, trial, 100, 100, 100) == [GO] * 3, "told before"
    assert report(searcher, 2, 9, 9) == [GO, STOP]


def test_late_reports_of_ended_trials_are_ignored() -> None:
    """Trials 0 and 1 failed after one step. At step 2 no trial is comparable, whatever late reports
    arrive."""
    searcher = around_random()
    for trial in (0, 1):
        report(searcher, trial, 1)
        assert searcher.tell(Report(TrialId(str(trial)), 1, None, TrialOutcome.FAILED)) is STOP
        assert report(searcher, trial, 1, 1, first=2) == [STOP, STOP]
    assert report(searcher, 2, 9, 9) == [GO, GO]


def test_stopped_trial_counts_as_worst_of_its_rung() -> None:
    inner = Asha(space=EXAMPLE_SPACE, goal=Goal.MIN, trials=4, max_epochs=9, seed=0, min_epochs=3)
    searcher = MedianStopping(
        space=EXAMPLE_SPACE, goal=Goal.MIN, trials=4, max_epochs=9, seed=0, inner=inner, least=2
    )
    for _ in range(4):
        searcher.ask()
    assert report(searcher, 0, 1, 1, 1)[-1] is Verdict.PAUSE
    assert report(searcher, 1, 2, 2, 2)[-1] is STOP
    assert report(searcher, 2, 9, 9) == [GO, STOP]
    answer = searcher.ask()
    assert isinstance(answer, Proposal)
    assert (answer.trial, answer.budget) == ("0", 9), (
        "the best of three: two that reached the rung, one that was stopped on the way"
    )
    assert searcher.tell(Report(TrialId("3"), 0, None, TrialOutcome.FAILED)) is STOP
    assert searcher.ask() is SearchState.WAIT

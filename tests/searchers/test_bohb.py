"""BOHB: the suite that every searcher passes, Hyperband's schedule, and a model of the largest budget that is
known well enough."""

from __future__ import annotations

import pytest

from hopyard.domain.space import Choice, Parameter, Space, Uniform
from hopyard.domain.study import Goal, Parallel, SearcherSpec, StudySpec
from hopyard.domain.trial import Proposal, Report, SearchState
from hopyard.searchers.bohb import Bohb
from hopyard.searchers.registry import build

from .test_contract import BuiltIn, no_custom_searcher

pytest.importorskip("optuna")

SPACE = Space((Parameter("x", Uniform(0.0, 1.0)), Parameter("batch", Choice((16, 32, 64)))))


class TestBohb(BuiltIn):
    name, trials = "bohb", None


class TestBohbWithTrials(BuiltIn):
    name, options, trials = "bohb", {"eta": 2, "random": 0.0}, 25


def open_bohb(trials: int | None = 120, *, random: float = 0.0, seed: int = 0) -> Bohb:
    spec = StudySpec(
        "s",
        SPACE,
        "loss",
        Goal.MIN,
        Parallel.TRIALS,
        SearcherSpec("bohb", {"random": random}),
        trials,
        max_epochs=9,
        seed=seed,
    )
    searcher = build(spec, no_custom_searcher)
    assert isinstance(searcher, Bohb)
    return searcher


def play(searcher: Bohb) -> list[Proposal]:
    """Runs trials one at a time. At few epochs the metric is the reverse of the metric at 9 epochs."""
    result = []
    while (answer := searcher.ask()) is not SearchState.DONE:
        assert isinstance(answer, Proposal)
        result.append(answer)
        x = float(answer.params["x"])
        searcher.tell(Report(answer.trial, answer.budget, x if answer.budget == 9 else 1 - x))
    return result


def test_budgets_are_those_of_hyperband() -> None:
    spec = StudySpec("s", SPACE, "loss", Goal.MIN, Parallel.TRIALS, SearcherSpec("hyperband"), max_epochs=9)
    plain = build(spec, no_custom_searcher)
    told = []
    while isinstance(answer := plain.ask(), Proposal):
        told.append((answer.trial, answer.budget))
        plain.tell(Report(answer.trial, answer.budget, int(answer.trial) % 5))
    own = open_bohb(None)
    said = []
    while isinstance(answer := own.ask(), Proposal):
        said.append((answer.trial, answer.budget))
        own.tell(Report(answer.trial, answer.budget, int(answer.trial) % 5))
    assert said == told


def test_largest_budget_with_enough_results_decides() -> None:
    """The more numerous results at 1 and 3 epochs mislead. Results at 9 epochs win as soon as there are
    five."""
    fresh = {proposal.trial: float(proposal.params["x"]) for proposal in play(open_bohb())}
    late = [x for trial, x in fresh.items() if int(trial) >= 60]
    assert sum(late) / len(late) < 0.35


def test_random_fraction_is_sampled_as_random_search() -> None:
    from hopyard.searchers.sampling import sample

    fresh = {int(p.trial): p.params for p in play(open_bohb(random=0.5))}
    alike = [number for number, params in fresh.items() if params == sample(SPACE, 0, number)]
    assert 0.35 * len(fresh) < len(alike) < 0.7 * len(fresh)
    assert play(open_bohb(random=0.5)) == play(open_bohb(random=0.5))

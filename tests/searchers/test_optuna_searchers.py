"""TPE, Gaussian process and CMA-ES: the contract suite, and properties of these searchers only."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Condition, Constant, Integer, Parameter, Space, Uniform
from hopyard.domain.study import Goal, Parallel, SearcherSpec, StudySpec
from hopyard.domain.trial import (
    AskEvent,
    Proposal,
    Report,
    SearchState,
    StudyEvent,
    TellEvent,
    TrialOutcome,
    Verdict,
)
from hopyard.errors import Conflict, SpecError
from hopyard.interfaces.searcher import Searcher
from hopyard.searchers.optuna_model import load_optuna
from hopyard.searchers.optuna_space import axes, is_monotonic
from hopyard.searchers.registry import build
from hopyard.searchers.replay import replay
from hopyard.searchers.sampling import sample

from .spaces import spaces
from .test_contract import BuiltIn, no_custom_searcher

optuna = pytest.importorskip("optuna")

MIXED = Space(
    (
        Parameter("lr", Uniform(1e-5, 1e-1, log=True)),
        Parameter("batch", Choice((16, 32, 64))),
        Parameter("optimizer", Choice(("sgd", "adam"))),
        Parameter("momentum", Uniform(0.0, 0.99), (Condition("optimizer", ("sgd",)),)),
        Parameter("dropout", Uniform(0.0, 0.5, step=0.1)),
        Parameter("warmup", Uniform(0.001, 1.0, log=True, step=0.001)),
        Parameter("layers", Integer(1, 8, log=True)),
        Parameter("width", Integer(8, 100, step=8)),
        Parameter("classes", Constant(10)),
    )
)


class TestTpe(BuiltIn):
    name, options = "tpe", {"startup": 4}


class TestMedianOfTpe(BuiltIn):
    name, options = "median", {"of": "tpe", "startup": 4, "least": 2}


class TestCmaEs(BuiltIn):
    name = "cmaes"


def open_searcher(
    name: str, space: Space = MIXED, *, trials: int = 40, seed: int = 0, **options: ParamValue
) -> Searcher:
    return build(
        StudySpec(
            "s", space, "loss", Goal.MIN, Parallel.TRIALS, SearcherSpec(name, options), trials, seed=seed
        ),
        no_custom_searcher,
    )


def loss(params: Mapping[str, ParamValue]) -> float:
    numbers = {key: float(value) for key, value in params.items() if isinstance(value, int | float)}
    far = (
        (math.log10(numbers["lr"]) + 3) ** 2
        + abs(numbers["batch"] - 32) / 16
        + (numbers.get("momentum", 0.5) - 0.9) ** 2
    )
    return far + numbers["dropout"] + abs(numbers["layers"] - 3) / 3 + abs(numbers["width"] - 64) / 64


def play(searcher: Searcher, *, at_a_time: int = 3) -> list[StudyEvent]:
    """Trains up to the given number of trials at a time and reports the second oldest first; every seventh
    fails."""
    events: list[StudyEvent] = []
    training: list[Proposal] = []
    while True:
        answer = searcher.ask()
        if isinstance(answer, Proposal):
            events.append(AskEvent(answer))
            training.append(answer)
        elif not training:
            return events
        if len(training) == at_a_time or not isinstance(answer, Proposal):
            one = training.pop(min(1, len(training) - 1))
            failed = int(one.trial) % 7 == 6
            report = Report(
                one.trial,
                one.budget,
                None if failed else loss(one.params),
                TrialOutcome.FAILED if failed else TrialOutcome.RUNNING,
            )
            events.append(TellEvent(report, searcher.tell(report)))


def proposals(events: list[StudyEvent]) -> list[Proposal]:
    return [
        event.answer for event in events if isinstance(event, AskEvent) and isinstance(event.answer, Proposal)
    ]


@pytest.mark.parametrize(
    ("name", "trials"), [("tpe", 40), ("cmaes", 40), pytest.param("gp", 13, marks=pytest.mark.torch)]
)
def test_equal_calls_give_bit_identical_answers(name: str, trials: int) -> None:
    if name == "gp":
        pytest.importorskip("torch")
    first = open_searcher(name, trials=trials)
    events = play(first)
    assert len(proposals(events)) == trials
    second_searcher = open_searcher(name, trials=trials)
    replay(second_searcher, events[: len(events) // 2])
    replay(second_searcher, events[len(events) // 2 :])
    assert second_searcher.ask() is SearchState.DONE
    if name != "gp":
        assert proposals(play(open_searcher(name, trials=trials, seed=1))) != proposals(events)


def test_answers_are_independent_of_hash_order_and_process() -> None:
    code = (
        "from tests.searchers.test_optuna_searchers import *; print([p.params for p in "
        "proposals(play(open_searcher('tpe', trials=25)))])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{[p.params for p in proposals(play(open_searcher('tpe', trials=25)))]}\n"}


def test_tpe_beats_random_search() -> None:
    chance, learnt = (
        [loss(p.params) for p in proposals(play(open_searcher(name, trials=80)))]
        for name in ("random", "tpe")
    )
    assert chance[:10] == learnt[:10], "it begins as random search with the same seed does"
    assert sum(learnt[40:]) < 0.6 * sum(chance[40:])
    assert min(learnt) < min(chance)


def test_no_configuration_repeats_and_space_is_exhausted() -> None:
    space = Space(
        (
            Parameter("a", Choice(("x", "y"))),
            Parameter("b", Choice((1, 2, 4))),
            Parameter("c", Integer(0, 2), (Condition("a", ("y",)),)),
        )
    )
    for name in ("tpe", "cmaes"):
        searcher, tried = open_searcher(name, space, trials=100), []
        while isinstance(answer := searcher.ask(), Proposal):
            tried.append(tuple(answer.params.items()))
            searcher.tell(Report(answer.trial, 1, 1.0))
        assert answer is SearchState.DONE
        assert searcher.ask() is SearchState.DONE
        assert len(tried) == len(set(tried)) == 3 + 3 * 3


def test_stopped_trials_inform_the_model() -> None:
    space = Space((Parameter("x", Uniform(0.0, 1.0)),))
    searcher = build(
        StudySpec(
            "s", space, "loss", Goal.MIN, Parallel.TRIALS, SearcherSpec("tpe", {}), 60, max_epochs=5, seed=0
        ),
        no_custom_searcher,
    )
    values = []
    while isinstance(answer := searcher.ask(), Proposal):
        x = float(answer.params["x"])
        values.append(x)
        searcher.tell(Report(answer.trial, 1, x))
        if x > 0.3:
            assert searcher.tell(Report(answer.trial, 1, x, TrialOutcome.STOPPED)) is Verdict.STOP
        else:
            searcher.tell(Report(answer.trial, 5, 0.0))
    assert sum(x < 0.4 for x in values[20:]) > 0.8 * len(values[20:])


@settings(max_examples=60, deadline=None)
@given(space=spaces(), seed=st.integers(0, 9))
def test_value_round_trips_through_its_position(space: Space, seed: int) -> None:
    axes_by_name = axes(space)
    for trial in range(5):
        for name, value in sample(space, seed, trial).items():
            if name in axes_by_name:
                axis = axes_by_name[name]
                back = axis.value_at(axis.position_of(value))
                assert type(back) is type(value)
                wide = (
                    0
                    if isinstance(axis.domain, Choice | Constant)
                    else abs(axis.domain.high) + abs(axis.domain.low)
                )
                assert back == (
                    pytest.approx(value, rel=1e-9, abs=1e-11 * wide) if isinstance(value, float) else value
                )


@settings(max_examples=15, deadline=None)
@given(space=spaces(), seed=st.integers(0, 9))
def test_proposals_are_in_space(space: Space, seed: int) -> None:
    searcher = open_searcher("tpe", space, trials=8, seed=seed, startup=2)
    while isinstance(answer := searcher.ask(), Proposal):
        exists = [p for p in space.parameters if space.is_active(p, answer.params)]
        assert [p.name for p in exists] == list(answer.params)
        for parameter in exists:
            value, domain = answer.params[parameter.name], parameter.domain
            if isinstance(domain, Uniform | Integer):
                assert isinstance(value, int | float)
                assert domain.low <= value <= domain.high
            else:
                assert value in (domain.values if isinstance(domain, Choice) else (domain.value,))
        searcher.tell(Report(answer.trial, 1, float(hash(str(answer.params)) % 7)))


def test_monotonic_numbers_are_a_scale() -> None:
    assert is_monotonic((16, 32, 64))
    assert is_monotonic((0.5, 0.1, 0.01))
    assert not is_monotonic((16, 64, 32))
    assert not is_monotonic((0, 1))
    assert not is_monotonic((False, 1, 2))
    assert not is_monotonic(("1", "2", "3"))


def test_optuna_logs_nothing_and_retains_user_settings(capfd: pytest.CaptureFixture[str]) -> None:
    optuna.logging.set_verbosity(logging.INFO)
    optuna.logging.enable_default_handler()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            play(open_searcher("tpe"))
            play(open_searcher("cmaes"))
        assert optuna.logging.get_verbosity() == logging.INFO
    finally:
        optuna.logging.set_verbosity(logging.WARNING)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_invalid_searcher_is_refused_before_training() -> None:
    with pytest.raises(SpecError, match="no parameter of the space is one") as error:
        open_searcher("cmaes", Space((Parameter("o", Choice(("a", "b"))),)))
    assert error.value.hints == ("take `tpe`",)
    with pytest.raises(SpecError, match="`tpe` needs the package no_such_package") as missing:
        load_optuna("tpe", "no_such_package")
    assert "pip install 'hopyard[search]'" in missing.value.hints
    with pytest.raises(SpecError, match=r"searcher.options.startup: `0` is out of range"):
        open_searcher("tpe", startup=0)


@pytest.mark.slow
def test_gaussian_process_is_loaded_before_first_trial() -> None:
    """Otherwise ended trials would wait for the imports of its first proposal. The proposals are the same."""
    code = (
        "import sys\n"
        "from tests.searchers.test_optuna_searchers import *\n"
        "searcher = open_searcher('gp')\n"
        "print('torch' in sys.modules, end=' ')\n"
        "searcher.ask(); before = set(sys.modules)\n"
        "play(searcher)\n"
        "print('torch' in before, len([name for name in set(sys.modules) - before if "
        "name.startswith(('optuna', 'torch', 'scipy'))]))\n"
    )
    pytest.importorskip("torch")
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "False True 0\n", result.stdout + result.stderr


def test_program_works_without_optuna() -> None:
    code = (
        "import sys; sys.modules['optuna'] = None\n"
        "import hopyard.searchers.registry, hopyard.searchers.optuna_searchers, hopyard.searchers.bohb, "
        "hopyard.searchers.importance\nfrom tests.searchers.test_optuna_searchers import *"
    )
    code = code.rpartition("\n")[0] + (
        "\nfrom hopyard.domain.space import *; from hopyard.domain.study import *; from hopyard.errors "
        "import SpecError\nspace = Space((Parameter('x', Uniform(0.0, 1.0)),))\n"
        "try: hopyard.searchers.registry.build(StudySpec('s', space, 'l', Goal.MIN, Parallel.TRIALS, "
        "SearcherSpec('tpe'), 3), None)\nexcept SpecError as e: print(e.message)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "searcher.name: `tpe` needs the package optuna, which is not installed\n"


def test_a_trial_of_another_study_is_refused() -> None:
    from hopyard.errors import Conflict

    with pytest.raises(Conflict):
        open_searcher("tpe").tell(Report(TrialId("5"), 1, 1.0))


@pytest.mark.parametrize("name", ["tpe", "gp"])
def test_proposals_of_an_earlier_process_are_not_computed_again(name: str) -> None:
    searcher = open_searcher(name, startup=2)
    events: list[StudyEvent] = []
    for loss in (0.5, 0.25):
        proposal = searcher.ask()
        assert isinstance(proposal, Proposal)
        report = Report(proposal.trial, proposal.budget, loss)
        events += [AskEvent(proposal), TellEvent(report, searcher.tell(report))]
    recorded = {**dict(events[0].answer.params), "batch": 64}  # type: ignore[union-attr]
    events.append(AskEvent(Proposal(TrialId("2"), recorded, 1)))
    restored = open_searcher(name, startup=2)
    assert replay(restored, events) == 5
    assert restored.tell(Report(TrialId("2"), 1, 0.1)) is Verdict.CONTINUE
    events[-1] = AskEvent(Proposal(TrialId("2"), {**recorded, "batch": 65}, 1))
    with pytest.raises(Conflict, match="`batch` of trial 2 is not in the space"):
        replay(open_searcher(name, startup=2), events)

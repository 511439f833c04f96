"""From a spec to a searcher: names, options, ranges, a user's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module

import pytest

from hopyard.domain.run import ParamValue
from hopyard.domain.searchers import SEARCHERS, OptionKind, check_options, requires_trials
from hopyard.domain.space import Choice, Parameter, Space, Uniform
from hopyard.domain.study import Goal, Parallel, SearcherSpec, StudySpec
from hopyard.domain.trial import Proposal, Report, SearchState, Verdict
from hopyard.errors import SpecError
from hopyard.searchers.registry import Factory, build

SPACE = Space((Parameter("lr", Uniform(1e-4, 1e-1, log=True)), Parameter("opt", Choice(("sgd", "adam")))))


class CustomSearcher:
    """A searcher of a user's own, of two trials."""

    def __init__(
        self, *, space: Space, goal: Goal, trials: int | None, max_epochs: int, seed: int, best: float = 0.0
    ) -> None:
        self.said = (space, goal, trials, max_epochs, seed, best)

    def ask(self) -> Proposal | SearchState:
        return SearchState.DONE

    def tell(self, _report: Report, /) -> Verdict:
        return Verdict.STOP


class NoSearcher:
    def __init__(self, **_rest: object) -> None:
        pass

    def ask(self) -> None:
        pass


OWN: Mapping[str, Factory] = {"mine.py:CustomSearcher": CustomSearcher, "mine.py:NoSearcher": NoSearcher}


def spec(
    name: str, options: Mapping[str, ParamValue] | None = None, *, trials: int | None = 9, max_epochs: int = 9
) -> StudySpec:
    return StudySpec(
        "s",
        SPACE,
        "acc",
        Goal.MAX,
        Parallel.TRIALS,
        SearcherSpec(name, options or {}),
        trials,
        max_epochs=max_epochs,
        seed=5,
    )


def build_searcher(
    name: str, options: Mapping[str, ParamValue] | None = None, *, trials: int | None = 9, max_epochs: int = 9
) -> object:
    return build(spec(name, options, trials=trials, max_epochs=max_epochs), OWN.__getitem__)


@pytest.mark.parametrize(
    ("name", "options", "expected", "hint"),
    [
        ("rnadom", {}, "searcher.name: unknown searcher `rnadom`", "did you mean `random`?"),
        ("asha", {"etta": 4}, "searcher.options.etta: `asha` has no such option", "did you mean `eta`?"),
        (
            "random",
            {"eta": 4},
            "searcher.options.eta: `random` has no such option",
            "`random` has no options",
        ),
        ("asha", {"eta": 1}, "searcher.options.eta: `1` is out of range", "allowed: at least 2"),
        ("asha", {"eta": 2.5}, "searcher.options.eta: `2.5` is not a whole number", ""),
        ("asha", {"eta": True}, "searcher.options.eta: `True` is not a whole number", ""),
        ("pbt", {"quantile": 0.6}, "searcher.options.quantile: `0.6` is out of range", "allowed: 0 to 0.5"),
        ("pbt", {"rounds": "yes"}, "searcher.options.rounds: `yes` is not true or false", ""),
        ("pbt", {"factor": float("nan")}, "searcher.options.factor: `nan` is not a number", ""),
        (
            "asha",
            {"min_epochs": 10},
            "searcher.options.min_epochs: 10 epochs at the lowest rung exceed max_epochs (9)",
            "",
        ),
        (
            "asha",
            {"min_epochs": 4},
            "max_epochs: with 9 and a lowest rung of 4 there is no rung",
            "at least 12",
        ),
        ("bayes", {}, "searcher.name: unknown searcher `bayes`", "did you mean `tpe`?"),
        (
            "successive_halving",
            {},
            "searcher.name: unknown searcher `successive_halving`",
            "did you mean `halving`?",
        ),
        ("median", {"of": "ahsa"}, "searcher.options.of: unknown searcher `ahsa`", "did you mean `asha`?"),
        (
            "median",
            {"of": "median"},
            "searcher.options.of: `median` is itself a wrapper of another searcher",
            "",
        ),
        (
            "median",
            {"of": "asha", "eeta": 3},
            "searcher.options.eeta: `median` has no such option",
            "did you mean `eta`?",
        ),
        ("grid", {}, "space.lr: a grid needs a number of points", "points: 5"),
        (
            "mine.py:CustomSearcher",
            {"bset": 1.0},
            "searcher.name: `mine.py:CustomSearcher` cannot be created",
            "by name",
        ),
        ("mine.py:NoSearcher", {}, "returned a NoSearcher, which has no tell", "docs/guides/own-searcher.md"),
    ],
)
def test_invalid_options_are_named(
    name: str, options: dict[str, ParamValue], expected: str, hint: str
) -> None:
    with pytest.raises(SpecError) as error:
        build_searcher(name, options)
    assert expected in error.value.message
    assert hint in "; ".join(error.value.hints)


@pytest.mark.parametrize(
    "name", [name for name, kind in SEARCHERS.items() if kind.requires_trials and not kind.wrapped]
)
def test_endless_searcher_requires_trials(name: str) -> None:
    with pytest.raises(SpecError, match=f"trials: `{name}` needs a number of trials"):
        build_searcher(name, trials=None)


def test_wrapper_requires_trials_when_inner_searcher_does() -> None:
    assert requires_trials("median", {})
    assert not requires_trials("median", {"of": "hyperband"})
    assert not requires_trials("mine.py:CustomSearcher", {})
    with pytest.raises(SpecError, match="trials: "):
        build_searcher("median", trials=None)
    build_searcher("median", {"of": "hyperband", "eta": 2}, trials=None)


@pytest.mark.parametrize(
    ("trials", "max_epochs", "expected"), [(0, 9, "trials: `0`"), (9, 0, "max_epochs: `0`")]
)
def test_numeric_options_must_be_positive(trials: int, max_epochs: int, expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        build_searcher("random", trials=trials, max_epochs=max_epochs)


def test_space_without_points_is_reported_first() -> None:
    empty = StudySpec("s", Space(()), "acc", Goal.MAX, Parallel.TRIALS, trials=3)
    with pytest.raises(SpecError, match="space: the space is empty"):
        build(empty, OWN.__getitem__)


def test_custom_searcher_receives_all_arguments() -> None:
    mine = build_searcher("mine.py:CustomSearcher", {"best": 0.5})
    assert isinstance(mine, CustomSearcher)
    assert mine.said == (SPACE, Goal.MAX, 9, 9, 5, 0.5)


def test_median_rule_wraps_custom_searcher_with_options() -> None:
    outer = build_searcher("median", {"of": "mine.py:CustomSearcher", "best": 2, "least": 3})
    assert outer.ask() is SearchState.DONE  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match="cannot be created"):
        build_searcher("median", {"of": "mine.py:CustomSearcher", "wurst": 2})


@pytest.mark.parametrize("name", SEARCHERS)
def test_searcher_table_matches_implementations(name: str) -> None:
    """Every target exists, takes its options, and their defaults are in range and the searcher's own."""
    kind = SEARCHERS[name]
    checked = check_options(name, {})
    for key, option in kind.options.items():
        assert option.description, f"{name}.{key}"
        assert option.default is None or checked[key] == option.default
        assert option.kind in OptionKind
    module, _, attribute = kind.target.partition(":")
    assert (find(module) / f"{module.rpartition('.')[2]}.py").read_text().count(f"class {attribute}") == 1


def find(module: str):  # type: ignore[no-untyped-def]
    """Returns the folder of a Hopyard module without importing it, since its dependencies may be missing."""
    from pathlib import Path

    return Path(str(import_module(module.rpartition(".")[0]).__file__)).parent


def test_searchers_are_imported_lazily() -> None:
    script = (
        "import sys, hopyard.searchers.registry, hopyard.domain.searchers\n"
        "print([m for m in sys.modules if m.startswith('hopyard.searchers.') and m != "
        "'hopyard.searchers.registry'], 'optuna' in sys.modules, 'numpy' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[] False False"


def test_set_order_decides_nothing() -> None:
    """The same study in interpreters that hash text differently."""
    script = """
from tests.searchers.test_contract import *
for kind in (TestMedianOfAsha, TestHyperband, TestAsha, TestPopulationBased, TestPopulationBasedInRounds):
    play = kind().open_simulator()
    play.run([(17 * n * n + 5 * n) % 256 for n in range(300)])
    print(play.events)
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 10_000

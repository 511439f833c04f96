"""Parameters and epochs of a fork of a study's best model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hopyard.config.schemas.study_json import study_from_json, study_to_json
from hopyard.config.search.study_fork import fork_study_spec
from hopyard.domain.space import Choice, Condition, Constant, Integer, Parameter, Space, Uniform
from hopyard.domain.study import Goal, InitialState, MopSpec, Parallel, PartitionPlan, SearcherSpec, StudySpec
from hopyard.domain.trial import Proposal, SearchState
from hopyard.errors import SpecError
from hopyard.searchers.registry import build

SPACE = Space((
    Parameter("lr", Uniform(0.01, 0.1)),
    Parameter("layers", Integer(1, 4)),
    Parameter("batch_size", Choice((16, 32))),
    Parameter("optimizer", Choice(("sgd", "adam"))),
    Parameter("momentum", Uniform(0.0, 0.9), (Condition("optimizer", ("sgd",)),)),
    Parameter("beta2", Uniform(0.9, 0.999), (Condition("optimizer", ("adam",)),)),
    Parameter("fixed", Constant("f")),
))  # fmt: skip
HAD = {"lr": 0.05, "layers": 2, "batch_size": 16, "optimizer": "sgd", "momentum": 0.5, "fixed": "f"}
STUDY = StudySpec(
    "s",
    SPACE,
    "acc",
    Goal.MAX,
    Parallel.MOP,
    SearcherSpec("asha", {"eta": 2}),
    trials=9,
    concurrent=1,
    max_epochs=10,
    seed=3,
    mop=MopSpec("t.py:T", 2, "d", PartitionPlan(2)),
    continues="earlier",
)
BEGIN = InitialState("run-1", "1.7", "alice/p/1", "3", 4, 0.5, HAD)


def fork_proposal(epochs: int | None = None, study: StudySpec = STUDY, **changes: Any) -> Proposal:
    """Returns the single proposal of its searcher."""
    fork = study_from_json(study_to_json(fork_study_spec(study, BEGIN, changes=changes, epochs=epochs)))
    searcher = build(fork, lambda _: None)
    result = searcher.ask()
    assert isinstance(result, Proposal) and searcher.ask() is SearchState.DONE
    assert (fork.trials, fork.concurrent, fork.continues, fork.seed, fork.mop, fork.beginning) == (
        1,
        0,
        "",
        3,
        STUDY.mop,
        BEGIN,
    )
    return result


def test_fork_is_one_trial_that_continues_the_best() -> None:
    assert fork_proposal() == Proposal(fork_proposal().trial, HAD, 14)
    assert fork_proposal(2).budget == 6
    fork = fork_study_spec(STUDY, BEGIN, changes={}, epochs=None)
    assert fork_proposal(study=fork).budget == 14, "as many epochs as in the first study"


def test_fork_has_no_points_of_the_search() -> None:
    study = replace(STUDY, points=({"lr": 0.09, "layers": 1},))
    assert fork_proposal(study=study, lr=0.03).params == {**HAD, "lr": 0.03}


def test_inactive_parameters_are_dropped_and_new_ones_required() -> None:
    assert fork_proposal(lr=1e-4).params == {**HAD, "lr": 1e-4}, "outside the searched range"
    assert fork_proposal(lr=1, batch_size=64, optimizer="lion").params == {
        **{k: v for k, v in HAD.items() if k != "momentum"},
        "lr": 1,
        "batch_size": 64,
        "optimizer": "lion",
    }
    assert fork_proposal(optimizer="adam", beta2=0.99).params == {
        "lr": 0.05,
        "layers": 2,
        "batch_size": 16,
        "optimizer": "adam",
        "beta2": 0.99,
        "fixed": "f",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning": 1}, "params.learning: the study has no such parameter"),
        ({"lr": "fast"}, "params.lr: fast is not a number"),
        ({"lr": True}, "params.lr: true is not a number"),
        ({"lr": float("nan")}, "params.lr: nan is not finite"),
        ({"layers": 2.5}, "params.layers: 2.5 is not a whole number"),
        ({"batch_size": 0.5}, "params.batch_size: 0.5 is not a whole number"),
        ({"optimizer": 3}, "params.optimizer: 3 is not a text"),
        ({"beta2": 0.99}, "params.beta2: it exists only where optimizer is adam"),
        (
            {"optimizer": "adam"},
            "params.beta2: it exists where optimizer is adam, and the best trial had none",
        ),
    ],
)
def test_invalid_change_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        fork_study_spec(STUDY, BEGIN, changes=changes, epochs=1)
    assert refused.value.message == message

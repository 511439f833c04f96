"""Importance of parameters, including conditional parameters."""

from __future__ import annotations

import math

import pytest

from hopyard.domain.space import Choice, Condition, Constant, Integer, Parameter, Space, Uniform
from hopyard.domain.study import Goal
from hopyard.errors import SpecError
from hopyard.searchers.importance import METHODS, importance
from hopyard.searchers.sampling import sample

pytest.importorskip("optuna")

SPACE = Space(
    (
        Parameter("lr", Uniform(1e-5, 1e-1, log=True)),
        Parameter("batch", Choice((16, 32, 64))),
        Parameter("optimizer", Choice(("sgd", "adam"))),
        Parameter("momentum", Uniform(0.0, 0.99), (Condition("optimizer", ("sgd",)),)),
        Parameter("layers", Integer(1, 8, log=True), (Condition("optimizer", ("adam",)),)),
        Parameter("classes", Constant(10)),
    )
)
TRIALS = [sample(SPACE, 0, number) for number in range(120)]


@pytest.mark.parametrize("method", METHODS)
def test_important_parameters_come_first(method: str) -> None:
    if method == "fanova":
        pytest.importorskip("sklearn")
    results = [
        (params, (math.log10(float(params["lr"])) + 3) ** 2 + 0.1 * (params["batch"] == 16))
        for params in TRIALS
    ]
    result = importance(SPACE, results, method=method)
    assert list(result) == sorted(result, key=lambda name: -result[name])
    assert set(result) == {"lr", "batch", "optimizer", "momentum", "layers"}
    assert next(iter(result)) == "lr"
    assert result["lr"] > 0.5
    assert sum(result.values()) == pytest.approx(1)
    assert importance(SPACE, results, method=method) == result
    assert (
        next(
            iter(
                importance(
                    SPACE, [(params, -value) for params, value in results], goal=Goal.MAX, method=method
                )
            )
        )
        == "lr"
    )


def test_conditional_parameter_can_be_most_important() -> None:
    results = [(params, abs(float(params.get("momentum", 0.5)) - 0.9)) for params in TRIALS]
    assert next(iter(importance(SPACE, results))) == "momentum"


def test_too_few_trials_have_no_importance() -> None:
    assert set(importance(SPACE, [(params, 1.0) for params in TRIALS]).values()) == {0.0}
    assert importance(Space((Parameter("c", Constant(1)),)), [({"c": 1}, float(n)) for n in range(9)]) == {}
    with pytest.raises(SpecError, match="3 results are too few"):
        importance(SPACE, [*((params, 1.0) for params in TRIALS[:3]), (TRIALS[3], math.nan)])
    with pytest.raises(SpecError, match="no method `shap`"):
        importance(SPACE, [], method="shap")

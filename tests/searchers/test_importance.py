"""Importance of parameters, including conditional parameters."""

from __future__ import annotations

import math

import pytest

from hopyard.domain.space import Choice, Condition, Constant, Integer, Parameter, Space, Uniform
from hopyard.domain.study import Goal
from hopyard.errors import SpecError
from hopyard.searchers.importance import importance
from hopyard.searchers.sampling import sample

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


def test_important_parameters_come_first() -> None:
    results = [
        (params, (math.log10(float(params["lr"])) + 3) ** 2 + 0.1 * (params["batch"] == 16))
        for params in TRIALS
    ]
    result = importance(SPACE, results)
    assert list(result) == sorted(result, key=lambda name: -result[name])
    assert set(result) == {"lr", "batch", "optimizer", "momentum", "layers"}
    assert next(iter(result)) == "lr"
    assert result["lr"] > 0.5
    assert sum(result.values()) == pytest.approx(1)
    assert importance(SPACE, results) == result
    assert (
        next(iter(importance(SPACE, [(params, -value) for params, value in results], goal=Goal.MAX))) == "lr"
    )


def test_conditional_parameter_can_be_most_important() -> None:
    results = [(params, abs(float(params.get("momentum", 0.5)) - 0.9)) for params in TRIALS]
    assert next(iter(importance(SPACE, results))) == "momentum"


def test_too_few_trials_have_no_importance() -> None:
    assert set(importance(SPACE, [(params, 1.0) for params in TRIALS]).values()) == {0.0}
    assert importance(Space((Parameter("c", Constant(1)),)), [({"c": 1}, float(n)) for n in range(9)]) == {}
    with pytest.raises(SpecError, match="3 results are too few"):
        importance(SPACE, [*((params, 1.0) for params in TRIALS[:3]), (TRIALS[3], math.nan)])


def test_share_grows_with_the_effect() -> None:
    space = Space(tuple(Parameter(name, Uniform(0.0, 1.0)) for name in ("large", "small", "none")))
    trials = [sample(space, 1, number) for number in range(1000)]
    results = [(params, 3 * float(params["large"]) + float(params["small"])) for params in trials]
    shares = importance(space, results)
    assert list(shares) == ["large", "small", "none"]
    assert shares["large"] > 0.8
    assert 0.03 < shares["small"] < 0.2
    assert shares["none"] < 0.02


def test_choices_and_whole_numbers_count_like_reals() -> None:
    for name, good in (("optimizer", ("adam",)), ("batch", (64,)), ("layers", (5, 6, 7, 8))):
        results = [(params, float(params.get(name) not in good)) for params in TRIALS]
        assert next(iter(importance(SPACE, results))) == name


def test_share_of_an_irrelevant_parameter_falls_with_more_trials() -> None:
    space = Space((Parameter("x", Uniform(0.0, 1.0)), Parameter("y", Choice(("a", "b", "c")))))

    def share(trials: int) -> float:
        params = [sample(space, 2, number) for number in range(trials)]
        return importance(space, [(each, float(each["x"])) for each in params])["y"]

    assert share(1000) < 0.01 < 0.2 > share(40)

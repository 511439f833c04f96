"""Spaces: every notation of a range means the same as in its library; invalid ones are refused with path and
hint."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hopyard.config.schemas.study_json import space_from_json, space_to_json
from hopyard.config.search.space import read_space
from hopyard.domain.space import (
    Choice,
    Condition,
    Constant,
    Domain,
    Integer,
    Parameter,
    Space,
    Uniform,
    check_space,
    count_combinations,
)
from hopyard.errors import SpecError
from hopyard.searchers.grid import combinations
from tests.searchers.spaces import spaces

LOG = Uniform(1e-4, 1e-1, log=True)


def read_one(notation: Any) -> Domain:
    return read_space({"x": notation}).parameters[0].domain


@pytest.mark.parametrize(
    ("notation", "domain"),
    [
        ("loguniform(1e-4, 1e-1)", LOG),
        (" tune.loguniform( 1e-4,1e-1, base=2 ) ", LOG),
        ({"loguniform": [1e-4, 1e-1]}, LOG),
        ({"loguniform": {"low": 1e-4, "high": 1e-1}}, LOG),
        ({"suggest_float": [1e-4, 1e-1], "log": True}, LOG),
        ({"type": "float", "low": 1e-4, "high": 1e-1, "log": True}, LOG),
        ({"min": 1e-4, "max": 1e-1, "log": True}, LOG),
        ("FloatDistribution(high=0.1, log=True, low=0.0001, step=None)", LOG),
        (
            {
                "name": "FloatDistribution",
                "attributes": {"step": None, "low": 1e-4, "high": 1e-1, "log": True},
            },
            LOG,
        ),
        ('trial.suggest_float("x", 1e-4, 1e-1, log=True)', LOG),
        ('trial.suggest_loguniform("x", 1e-4, 1e-1)', LOG),
        ("LogUniformDistribution(high=0.1, low=0.0001)", LOG),
        ({"type": "float", "low": 0, "high": 1, "step": 0.25}, Uniform(0.0, 1.0, step=0.25)),
        ("uniform(-1, 1)", Uniform(-1.0, 1.0)),
        ("DiscreteUniformDistribution(high=1.05, low=0.05, q=0.1)", Uniform(0.05, 1.05, step=0.1)),
        ("quniform(0.2, 1.0, 0.2)", Uniform(0.2, 1.0, step=0.2)),
        ("qloguniform(0.001, 1, 0.001)", Uniform(0.001, 1.0, log=True, step=0.001)),
        ("int(1, 8)", Integer(1, 8)),
        ({"int": [1, 1e3], "log": True, "points": 4}, Integer(1, 1000, log=True, points=4)),
        ("suggest_int(1, 9, step=2)", Integer(1, 9, step=2)),
        ("IntDistribution(high=9, log=False, low=1, step=2)", Integer(1, 9, step=2)),
        ("IntUniformDistribution(high=9, low=1, step=2)", Integer(1, 9, step=2)),
        ("IntLogUniformDistribution(high=9, low=1, step=1)", Integer(1, 9, log=True)),
        ("randint(1, 9)", Integer(1, 8)),
        ("lograndint(1, 9)", Integer(1, 8, log=True)),
        ("qrandint(2, 8, 2)", Integer(2, 8, step=2)),
        ("qlograndint(8, 64, 8)", Integer(8, 64, log=True, step=8)),
        (range(4, 17, 4), Integer(4, 16, step=4)),
        (range(3, 0, -1), Integer(1, 3)),
        ([16, 32], Choice((16, 32))),
        (("a", None, True), Choice(("a", None, True))),
        ("choice([relu, 'tanh', None, true])", Choice(("relu", "tanh", None, True))),
        ({"grid_search": [1, 2]}, Choice((1, 2))),
        ({"values": ["uniform(0, 1)", "b"]}, Choice(("uniform(0, 1)", "b"))),
        ({"type": "categorical", "choices": ["a", "b"]}, Choice(("a", "b"))),
        ("CategoricalDistribution(choices=('a', 'b'))", Choice(("a", "b"))),
        (np.logspace(-2, 0, 3), Choice((0.01, 0.1, 1.0))),
        (np.float64(0.5), Constant(0.5)),
        ("adam", Constant("adam")),
        ({"value": "f(x)"}, Constant("f(x)")),
        ({"value": None}, Constant(None)),
        ("uniform(2, 2)", Constant(2.0)),
        ("int(3, 3)", Constant(3)),
    ],
)
def test_notations(notation: Any, domain: Domain) -> None:
    result = read_one(notation)
    assert result == domain
    assert (
        [type(value) for value in result.values] == [type(value) for value in domain.values]
        if isinstance(domain, Choice)
        else repr(result) == repr(domain)
    )  # type: ignore[union-attr]


def test_optuna_distributions() -> None:
    d = pytest.importorskip("optuna").distributions
    assert read_one(d.FloatDistribution(1e-4, 1e-1, log=True)) == LOG
    assert read_one(d.FloatDistribution(0, 1, step=0.25)) == Uniform(0.0, 1.0, step=0.25)
    assert read_one(d.IntDistribution(1, 9, step=2)) == Integer(1, 9, step=2)
    assert read_one(d.CategoricalDistribution(("a", 1))) == Choice(("a", 1))
    assert read_one(str(d.IntDistribution(1, 8, log=True))) == Integer(1, 8, log=True)


def ray(name: str, **attributes: Any) -> Any:
    """An object like those of Ray Tune's `sample` module, recognised by class, module and attributes."""
    return type(name, (SimpleNamespace,), {"__module__": "ray.tune.search.sample"})(**attributes)


def test_ray_tune_domains() -> None:
    uniform, log, normal = ray("_Uniform"), ray("_LogUniform", base=10), ray("_Normal", mean=0, sd=1)
    assert read_one(ray("Float", lower=1e-4, upper=1e-1, sampler=log)) == LOG
    assert read_one(
        ray("Float", lower=0, upper=1, sampler=ray("Quantized", sampler=uniform, q=0.5))
    ) == Uniform(0.0, 1.0, step=0.5)
    assert read_one(ray("Float", lower=1, upper=9, sampler=ray("Quantized", sampler=log, q=1))) == Uniform(
        1.0, 9.0, log=True, step=1.0
    )
    assert read_one(ray("Integer", lower=1, upper=9, sampler=uniform)) == Integer(1, 8)
    assert read_one(ray("Integer", lower=1, upper=9, sampler=log)) == Integer(1, 8, log=True)
    assert read_one(
        ray("Integer", lower=2, upper=8, sampler=ray("Quantized", sampler=uniform, q=2))
    ) == Integer(2, 8, step=2)
    assert read_one(ray("Integer", lower=8, upper=64, sampler=ray("Quantized", sampler=log, q=8))) == Integer(
        8, 64, log=True, step=8
    )
    assert read_one(ray("Categorical", categories=["a", "b"], sampler=uniform)) == Choice(("a", "b"))
    with pytest.raises(SpecError, match="no bounds"):
        read_one(ray("Float", lower=-math.inf, upper=math.inf, sampler=normal))
    with pytest.raises(SpecError, match="holds code"):
        read_one(ray("Function", func=print))


NESTED = """
optimizer:
  choice:
    sgd:
      momentum: uniform(0.0, 0.99)
      nesterov: [true, false]
    adam:
      beta2: {type: float, low: 0.9, high: 0.999}
      warmup: int(0, 9)
    lion:
      warmup: int(0, 9)
layers: {int: [1, 4]}
width_3: {int: [16, 256], log: true, when: {layers: [3, 4.0]}}
damping: {type: float, low: 0.0, high: 0.5, when: {optimizer: sgd, nesterov: false}}
"""


def test_conditions() -> None:
    space = read_space(yaml.safe_load(NESTED))
    conditions = {p.name: p.conditions for p in space.parameters}
    sgd = Condition("optimizer", ("sgd",))
    assert list(conditions) == [
        "optimizer",
        "momentum",
        "nesterov",
        "beta2",
        "warmup",
        "layers",
        "width_3",
        "damping",
    ]
    assert conditions["optimizer"] == conditions["layers"] == ()
    assert conditions["momentum"] == conditions["nesterov"] == (sgd,)
    assert conditions["warmup"] == (Condition("optimizer", ("adam", "lion")),), (
        "the same range under two values is one parameter"
    )
    assert conditions["width_3"] == (Condition("layers", (3, 4)),)
    assert conditions["damping"] == (sgd, Condition("nesterov", (False,)))
    check_space(space)


BAD: list[tuple[Any, str, str]] = [
    ({}, "space: there is no parameter", "lr: loguniform"),
    ([], "space: `[]` is not a mapping", "name: range"),
    ({"x": []}, "space.x: there is nothing to choose from", "at least one value"),
    ({"x": {}}, "space.x: there is nothing to choose from", "uniform(0, 1)"),
    ({"x": {"choice": {}}}, "space.x.choice: there is nothing to choose from", ""),
    ({"x": "uniform(3, 1)"}, "space.x: low `3` is larger than high `1`", "1 to 3"),
    ({"x": {"int": [8, 1]}}, "space.x: low `8` is larger", "1 to 8"),
    ({"x": "loguniform(0, 1)"}, "space.x: low 0 has no logarithm", "choose a lower bound above 0"),
    ({"x": {"uniform": [-1, 1], "log": True}}, "space.x: low -1 has no logarithm", "leave out `log`"),
    ({"x": "unifrom(0, 1)"}, "space.x: there is no range `unifrom`", "did you mean `uniform`?"),
    ({"x": {"unifrom": [0, 1]}}, "space.x: there is no key `unifrom`", "did you mean `uniform`?"),
    ({"x": {"uniform": [0, 1], "stp": 0.1}}, "space.x: `uniform` has no `stp`", "did you mean `step`?"),
    (
        {"x": {"type": "flaot", "low": 0, "high": 1}},
        "space.x.type: there is no range `flaot`",
        "did you mean `float`?",
    ),
    ({"x": {"uniform": [0, 1], "int": [0, 1]}}, "space.x: `uniform` and `int` stand in it", ""),
    ({"x": {"type": "int", "uniform": [0, 1]}}, "space.x: `type` and `uniform` stand in it", ""),
    ({"x": {"low": 0, "high": 1}}, "space.x: real or whole numbers?", "type: float"),
    ({"x": {"low": 0.5}}, "space.x: `float` lacks `high`", "float(low, high)"),
    ({"x": "uniform(0)"}, "space.x: `uniform` lacks `high`", "uniform(low, high)"),
    ({"x": "uniform(0, 1, True, 2, 3, 4)"}, "space.x: `uniform` takes at most 5 values", ""),
    ({"x": "uniform(0, 1, low=2)"}, "space.x: `low` is given twice", ""),
    ({"x": "uniform(0, 1"}, "space.x: `uniform(0, 1` cannot be read", "needs quotes"),
    ({"x": "uniform(0, 1) + 1"}, "space.x: `uniform(0, 1) + 1` is more than one range", ""),
    ({"x": "uniform(0, 10**9)"}, "space.x: `10 ** 9` is not a number", "nothing is computed"),
    ({"x": "choice(open('f'))"}, "space.x: `open('f')` is not a number", "nothing is computed"),
    ({"x": "uniform(**{})"}, "space.x:", ""),
    ({"x": "uniform(nan, 1)"}, "space.x: low: `nan` is not a number", ""),
    ({"x": {"uniform": [0, math.nan]}}, "space.x: high: `nan` is not a finite number", ""),
    ({"x": {"uniform": [0, "1"]}}, "space.x: high: `1` is not a number", ""),
    ({"x": {"uniform": [True, 2]}}, "space.x: low: `true` is not a number", ""),
    ({"x": {"uniform": [-1e308, 1e308]}}, "space.x: from `-1e+308` to `1e+308` is wider", ""),
    ({"x": {"uniform": 5}}, "space.x: uniform: `5` is not a list of two numbers", ""),
    ({"x": {"int": [0, 1.5]}}, "space.x: high: `1.5` is not a whole number", "uniform(low, high)"),
    ({"x": {"int": [0, 2**70]}}, "space.x: high: `1180591620717411303424` is larger than 64 bits", ""),
    ({"x": {"uniform": [0, 1], "step": 0}}, "space.x: step: `0` is not above 0", ""),
    ({"x": {"uniform": [0, 1], "step": 2}}, "space.x: step: `2` is not above 0 and at most 1", ""),
    ({"x": {"uniform": [1e300, 2e300], "step": 1}}, "space.x: step: `1` is too small", "leave out the step"),
    ({"x": {"int": [0, 9], "step": 2.5}}, "space.x: step: `2.5` is not a whole number", ""),
    ({"x": {"int": [0, 9], "points": 0}}, "space.x: points: `0` is not a whole number from 1", "grid"),
    ({"x": {"int": [0, 9], "log": "yes"}}, "space.x: log: `yes` is neither true nor false", ""),
    (
        {"x": "quniform(0.1, 1, 0.25)"},
        "space.x: low: `0.1` is not a multiple of `0.25`",
        "begin at 0 or 0.25",
    ),
    ({"x": "randint(3, 3)"}, "space.x: there is no whole number from 3 to below 3", "left out"),
    ({"x": "randn(0, 1)"}, "space.x: `randn` has no bounds", ""),
    ({"x": "tune.sample_from(f)"}, "space.x: `sample_from` holds code", "when"),
    ({"x": lambda: 1}, "space.x: `<function", "when"),
    ({"x": object()}, "space.x: `<object", "ranges"),
    ({"x": [1, 2, 1]}, "space.x.2: `1` is given twice: it is the same as value 0", "each value once"),
    ({"x": [1, True]}, "space.x.1: `true` is given twice", "1, 1.0 and true"),
    ({"x": [[64, 64]]}, "space.x.0: `[64, 64]` is not a single value", "64,64"),
    ({"x": [math.inf]}, "space.x.0: `inf` is not a finite number", ""),
    ({"x": {1, 2}}, "space.x: `{1, 2}` is no range", ""),
    ({"x": {"lr": "uniform(0, 1)", "b": 1}}, "space.x: no range stands in it", "optimizer.lr"),
    ({"x y": 1}, "space: `x y` is not the name of a parameter", "letters"),
    ({3: 1}, "space: the key `3` is not a text", ""),
    (
        {"a": {"int": [1, 2], "when": {"b": 1}}, "b": [1]},
        "space.a.when.b: there is no parameter `b` above it",
        "stands below",
    ),
    (
        {"b": [1], "a": {"int": [1, 2], "when": {"bb": 1}}},
        "space.a.when.bb: there is no parameter",
        "did you mean `b`?",
    ),
    ({"a": {"int": [1, 2], "when": {"a": 1}}}, "space.a.when.a: `a` cannot depend on itself", ""),
    (
        {"a": ["x", "y"], "b": {"int": [1, 2], "when": {"a": "z"}}},
        "space.b.when.a: `z` is not a value that `a` can have",
        "its values: x, y",
    ),
    (
        {"a": {"int": [1, 5], "step": 2}, "b": {"int": [1, 2], "when": {"a": 2}}},
        "space.b.when.a: `2` is not a value",
        "1 to 5 in steps of 2",
    ),
    (
        {"a": "1e-5..1e-1"},
        "space.a: `1e-5..1e-1` is a text, and looks like a range",
        "loguniform(1e-5, 1e-1)",
    ),
    ({"a": "1 - 8"}, "space.a: `1 - 8` is a text", "int(1, 8)"),
    ({"a": "-.5 to +2"}, "space.a: `-.5 to +2` is a text", "uniform(-.5, +2)"),
    ({"a": None}, "space.a: no range is given", "a: {value: null}"),
    ({"a": 7, "b": {"int": [1, 2], "when": {"a": 2}}}, "space.b.when.a: `2` is not a value", "always `7`"),
    (
        {"a": "uniform(0, 1)", "b": {"int": [1, 2], "when": {"a": 0.5}}},
        "space.b.when.a: `a` is a range of real numbers",
        "choice",
    ),
    (
        {"a": [1, 2], "b": {"int": [1, 2], "when": {}}},
        "space.b.when: `{}` is no condition",
        "{optimizer: sgd}",
    ),
    ({"a": [1, 2], "b": {"int": [1, 2], "when": {"a": []}}}, "space.b.when.a: no value is given", ""),
    (
        {"o": {"choice": {"a": {"l": "int(1, 2)"}, "b": {"l": "int(1, 3)"}}}},
        "space.o.b.l: there is another parameter `l`",
        "two names",
    ),
    ({"o": {"choice": {"a": 5}}}, "space.o.a: `5` is not a mapping", ""),
    (
        {
            "o": ["a", "b"],
            "p": {"values": [1, 2], "when": {"o": "a"}},
            "q": {"values": [1, 2], "when": {"o": "b", "p": 1}},
        },
        "space.q.when.o: no value of `o` is left: `q` would never exist",
        "",
    ),
]


@pytest.mark.parametrize(("notation", "problem", "hint"), BAD)
def test_invalid_space_is_refused(notation: Any, problem: str, hint: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_space(notation)
    assert refused.value.message.startswith(problem), refused.value.message
    assert hint in " | ".join(refused.value.hints), refused.value.hints


@given(
    text=st.text(max_size=60)
    | st.text(alphabet="uniform(0,1.)[]{}=_*'\"\\ \n", max_size=40).map(lambda text: "uniform(" + text)
)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        check_space(read_space({"x": text}))
    except SpecError as refused:
        assert refused.message.startswith("space.x: ")


@given(space=spaces())
def test_space_round_trips_through_json(space: Space) -> None:
    import json

    back = space_from_json(json.loads(json.dumps(space_to_json(space), sort_keys=True)))
    assert back == space
    assert repr(back) == repr(space)


@pytest.mark.parametrize(
    ("ranges", "limit", "count"),
    [
        ({"lr": [1, 2, 3]}, 3, 3),
        ({"lr": [1, 2, 3]}, 2, None),
        ({"lr": [1, 2], "n": {"int": [2, 6], "step": 2}, "fixed": 7}, 6, 6),
        ({"lr": [1, 2], "n": {"int": [1, 10**9]}}, 50, None),
        ({"lr": [1, 2], "d": "uniform(0, 1)"}, 50, None),
        ({"lr": [1, 2], "n": {"int": [1, 8], "points": 2}}, 50, None),
        ({"opt": ["adam", "sgd"], "momentum": {"values": [0.8, 0.9], "when": {"opt": "sgd"}}}, 3, 3),
    ],
)
def test_combinations_are_counted_up_to_a_limit(ranges: Any, limit: int, count: int | None) -> None:
    assert count_combinations(read_space(ranges), limit) == count
    if count is not None:
        assert len(combinations(read_space(ranges))) == count


def test_space_object_is_used_unchanged() -> None:
    space = read_space(yaml.safe_load(NESTED))
    assert read_space(space) == space
    with pytest.raises(SpecError, match=r"hop\.search: space\.x: low `2` is larger"):
        read_space(Space((Parameter("x", Uniform(2, 1)),)), where="hop.search: space")

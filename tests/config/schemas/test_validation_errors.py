"""A value that msgspec refuses is explained by its path, the value and the allowed values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.config.schemas.runs import SpecIn
from hopyard.config.schemas.validation_errors import explain, find_problem

SPEC: dict[str, Any] = {"project": "p", "roles": [{"command": ["a"]}]}
STUDY: dict[str, Any] = {"name": "s", "space": [], "metric": "m", "goal": "max", "parallel": "mop"}


def role(**fields: Any) -> dict[str, Any]:
    return {"roles": [{"command": ["a"], **fields}]}


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ({"priority": 101}, "priority: `101` is not a whole number from 0 to 100", ""),
        ({"priority": True}, "priority: `true` is not a whole number from 0 to 100", ""),
        ({"time_limit_s": 0}, "time_limit_s: `0` is not a number above 0, at most 315360000", ""),
        ({"project": None}, "project: null is not a text", ""),
        ({"project": "../x"}, "project: `../x` is not a name", "letters"),
        ({"label": "a\x1b"}, "label: `a\\x1b` is not a line of visible characters", "one line"),
        ({"label": 5}, "label: `5` is not a text", 'in quotes: "5"'),
        ({"label": "x" * 129}, "label: it has 129 characters, at most 128 are allowed", "shorten"),
        ({"preemptible": "no"}, "preemptible: `no` is neither true nor false", "without quotes"),
        ({"roles": []}, "roles: it is empty", "not allowed"),
        ({"roles": {}}, "roles: it is an object, not a list", ""),
        (role(command=[]), "roles.0.command: it is empty", ""),
        (role(replica=1), "roles.0: there is no field `replica`", "did you mean `replicas`?"),
        ({"topology": {"level": "node"}}, "topology.rule: missing", "add it"),
        (
            {"topology": {"level": "node", "rule": "sam"}},
            "topology.rule: `sam` is not one of `same`, `near`, `balanced`, `spread`",
            "did you mean `same`?",
        ),
        (role(resources={"extras": [["a"]]}), "roles.0.resources.extras.0: 1 values are given, 2 are", ""),
        ({"params": {"lr": [1]}}, "params.lr: it is a list, not a text or a number or true or false", ""),
        ({"params": {"lr": 2**63}}, "params.lr: `9223372036854775808` is not a whole number of 64 bits", ""),
        ({"env": {"A=": "x"}}, "env.A=: the key: `A=` is not the name of an environment variable", ""),
        ({"environment": {"python": "3.x"}}, "environment.python: `3.x` is not a version of Python", "3.12"),
        (
            {"study": {**STUDY, "space": [{"kind": "uniforms", "name": "x"}]}},
            "study.space.0.kind: `uniforms` is not one of",
            "did you mean `uniform`?",
        ),
        ({"study": {**STUDY, "space": [{"name": "x"}]}}, "study.space.0.kind: missing", "add it"),
        ({"study": {**STUDY, "space": [{"kind": [], "name": "x"}]}}, "study.space.0.kind: it is a list", ""),
        ({"study": {**STUDY, "space": [{"kind": {}, "name": "x"}]}}, "study.space.0.kind: it is an obj", ""),
    ],
)
def test_refused_values_are_explained(fields: dict[str, Any], message: str, hint: str) -> None:
    value = {**SPEC, **fields}
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(value, SpecIn)
    problem = explain(refused.value, value, SpecIn)
    assert problem.message().startswith(message)
    assert any(hint in line for line in problem.hints) or not hint


@pytest.mark.parametrize("value", [123456, "secret\0", "s" * 70_000])
def test_values_of_variables_are_not_shown(value: Any) -> None:
    problem = find_problem({**SPEC, "env": {"KEY": value}}, SpecIn)
    assert problem is not None
    assert problem.path == ("env", "KEY")
    assert str(value)[:6] not in " ".join([problem.message(), *problem.hints])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@given(st.dictionaries(st.sampled_from(SpecIn.__struct_fields__), JSON, max_size=2))
def test_only_refused_values_have_a_problem(fields: dict[str, Any]) -> None:
    value = {**SPEC, **fields}
    try:
        msgspec.convert(value, SpecIn)
    except msgspec.ValidationError as refused:
        assert explain(refused, value, SpecIn).problem
    else:
        assert find_problem(value, SpecIn) is None

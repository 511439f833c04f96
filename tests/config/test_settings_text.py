"""Single settings of YAML and TOML texts: the values, and that the rest of the text remains."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hopyard.config.toml_settings import change_toml
from hopyard.config.yaml_settings import change_yaml

YAML = """\
# settings of the model
optim:   # the optimizer
  lr: 0.1   # not too high
  name: 'sgd'
  betas: [0.9, 0.99]  # two
base: &base
  dim: 8
other: *base
rate: &rate 0.5
same: *rate
flow: {a: 1, b: {c: 2}}
text: |
  one
  two
# behind
empty:
stages:
  - depth: 2
  - depth: 3
a.b: 1
"""
TOML = """\
# settings
title = "x"  # with a # inside

[optim]
lr = 0.1  # not too high
names = [
  "a", # first
  "b",
]
inline = { a = 1, "b c" = 2 }

[model.head]
dim = 8
[[stage]]
depth = 2
[[stage]]
depth = 3
"""


@pytest.mark.parametrize(
    ("params", "old", "new"),
    [
        ({"optim.lr": 1e-5}, "lr: 0.1   # not", "lr: 1.0e-05   # not"),
        ({"optim.name": "adam"}, "name: 'sgd'", "name: adam"),
        ({"optim.betas": "x: y"}, "[0.9, 0.99]  # two", '"x: y"  # two'),
        ({"optim.betas.1": 2}, "0.99]", "2]"),
        ({"optim.new": True}, "  lr: 0.1 ", "  new: true\n  lr: 0.1 "),
        ({"rate": 2}, "&rate 0.5", "&rate 2"),
        ({"same": 2}, "same: *rate", "same: 2"),
        ({"flow.a": None}, "{a: 1,", "{a: null,"),
        ({"flow.b.d.e": 1}, "{c: 2}", "{d: {e: 1}, c: 2}"),
        ({"text": "x"}, "|\n  one\n  two\n", "x\n"),
        ({"empty": 1}, "empty:\n", "empty: 1\n"),
        ({"empty.a": 1}, "empty:\n", "empty: {a: 1}\n"),
        ({"stages.1.depth": 4}, "depth: 3", "depth: 4"),
        ({"stages.0.size": 4}, "- depth: 2", "- size: 4\n    depth: 2"),
        ({"a.b": 2}, "a.b: 1", "a.b: 2"),
        ({"top": 1}, "optim:   #", "top: 1\noptim:   #"),
        ({"optim": 1}, YAML[YAML.index("optim") : YAML.index("  # two")], "optim:   # the optimizer\n    1"),
    ],
)
def test_yaml_changes_only_the_setting(params: dict[str, Any], old: str, new: str) -> None:
    assert YAML.count(old) == 1
    assert change_yaml(YAML, params) == YAML.replace(old, new)


@pytest.mark.parametrize(
    ("params", "old", "new"),
    [
        ({"title": "y"}, '"x"  # with', '"y"  # with'),
        ({"optim.lr": 1e-5}, "lr = 0.1  #", "lr = 1e-05  #"),
        ({"optim.names": 1}, '[\n  "a", # first\n  "b",\n]', "1"),
        ({"optim.inline.a": 3}, '{ a = 1, "b c" = 2 }', '{ a = 3, "b c" = 2 }'),
        ({"optim.new": True}, "[optim]\n", "[optim]\nnew = true\n"),
        ({"model.head.dim": 4}, "dim = 8", "dim = 4"),
        ({"model.depth": 4}, "inside\n", "inside\nmodel.depth = 4\n"),
        ({"stage.1.depth": 4}, "depth = 3", "depth = 4"),
        ({"top": "a\x7f"}, "inside\n", 'inside\ntop = "a\\u007f"\n'),
    ],
)
def test_toml_changes_only_the_setting(params: dict[str, Any], old: str, new: str) -> None:
    assert TOML.count(old) == 1
    assert change_toml(TOML, params) == TOML.replace(old, new)


def test_texts_without_keys_and_odd_values_are_refused() -> None:
    for text, params in (("- a\n", {"lr": 1}), ("a: [\n", {"lr": 1}), (YAML, {"other.dim": 1})):
        with pytest.raises(ValueError):
            change_yaml(text, params)
    toml: list[tuple[str, dict[str, Any]]] = [
        ("a = \n", {"lr": 1}),
        (TOML, {"lr": None}),
        (TOML, {"optim": 1}),
    ]
    toml += [(TOML, {"optim.names.2": 1}), (TOML, {"stage.2.depth": 1}), (TOML, {"stage.x.depth": 1})]
    for text, params in toml:
        with pytest.raises(ValueError):
            change_toml(text, params)
    assert change_yaml("", {"a.b": 1, "c": "x"}) == "c: x\na: {b: 1}\n"
    assert change_yaml("# only this", {"a": 1}) == "# only this\na: 1\n"
    assert change_toml("", {"a.b": 1, "c": "x"}) == 'a.b = 1\nc = "x"\n'


def test_last_one_of_two_equal_keys_is_changed() -> None:
    assert change_yaml("a: 1\na: 2\n", {"a": 3}) == "a: 1\na: 3\n"


def test_numbers_that_are_not_finite_are_numbers_of_yaml() -> None:
    text = change_yaml("", {"a": math.inf, "b": -math.inf, "c": math.nan})
    values = yaml.safe_load(text)
    assert (values["a"], values["b"], math.isnan(values["c"])) == (math.inf, -math.inf, True)


@pytest.mark.parametrize(
    "value",
    [
        '"a # b \\" ]"',
        "'a # [ b\\'",
        '"""\n# a\n"b" \\""" ] """"',
        "'''\n# a\n'b\\'''",
        '""',
        "''''''",
        '[\n  "]", # ]\n  {a = "}"},\n]',
        "1979-05-27 07:32:00Z",
    ],
)
def test_toml_value_is_found_to_its_end(value: str) -> None:
    text = f"x = {value}  # old\n[t]\ny = 1\n"
    assert change_toml(text, {"x": 2, "t.y": 3}) == "x = 2  # old\n[t]\ny = 3\n"


NAMES = st.sampled_from(["a", "b", "lr", "deep key", "no", "1"])
VALUES = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)
TREES = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(NAMES, TREES, max_size=4), NAMES, VALUES, st.booleans())
def test_yaml_parsers_read_the_new_value(settings: dict[str, Any], name: str, value: Any, flow: bool) -> None:
    text = yaml.safe_dump(settings, default_flow_style=flow, allow_unicode=True)
    assert yaml.safe_load(change_yaml(text, {name: value})) == {**settings, name: value}


@given(NAMES, NAMES, VALUES)
def test_toml_parser_reads_the_new_value(table: str, name: str, value: Any) -> None:
    text = f'x = 1\n["{table}"] # here\n"{name}" = 1 # old\n'
    changed = tomllib.loads(change_toml(text, {f"{table}.{name}": value, "x": value}))
    assert changed == {"x": value, table: {name: value}}

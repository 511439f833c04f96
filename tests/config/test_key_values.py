"""`K=V` pairs: types, quotes and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.config.key_values import format_value, parse_env, parse_params, parse_tags, parse_value
from hopyard.errors import SpecError

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)


@given(VALUES)
def test_value_round_trips(value: str | int | float | bool | None) -> None:
    again = parse_value(format_value(value))
    assert type(again) is type(value)
    assert again == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        ("1e-4", 1e-4),
        ("3", 3),
        ("-2", -2),
        ("true", True),
        ("False", False),
        ("null", None),
        ("None", None),
        ("none", "none"),
        ("adam", "adam"),
        ("'1'", "1"),
        ("'x'", "'x'"),
        ("'[a,b]'", "'[a,b]'"),
        ('"true"', "true"),
        ("", ""),
        ("1_000", "1_000"),
        ("007", "007"),
        ("1.", 1.0),
        (".5", 0.5),
        ("inf", "inf"),
        ("nan", "nan"),
        ("a=b", "a=b"),
        ("0x10", "0x10"),
        ("9" * 30, "9" * 30),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_value_types(text: str, value: object) -> None:
    result = parse_value(text)
    assert type(result) is type(value)
    assert result == value


def test_duplicate_keys_are_refused() -> None:
    assert parse_params(["lr=0.1", "name=x=y"]) == {"lr": 0.1, "name": "x=y"}
    for parse in (parse_params, parse_tags, lambda pairs: parse_env(pairs, {"a": "here"})):
        with pytest.raises(SpecError, match="`a` is given twice"):
            parse(["a=1", "b=1", "a=2"])
    with pytest.raises(SpecError, match="`a` is given twice"):
        parse_env(["a", "a=2"], {"a": "here"})


@pytest.mark.parametrize("pair", ["lr", "=1", "a b=1", "1a=2", "ä=1"])
def test_invalid_params_are_refused(pair: str) -> None:
    with pytest.raises(SpecError, match="-p"):
        parse_params([pair])


def test_env_copies_local_variables() -> None:
    assert parse_env(["A=1", "B", "C="], {"B": "here"}) == {"A": "1", "B": "here", "C": ""}


@pytest.mark.parametrize("pair", ["MISSING", "1A=2", "A-B=1", "=1", "HOPYARD_URL=x", "CUDA_VISIBLE_DEVICES="])
def test_invalid_env_is_refused(pair: str) -> None:
    with pytest.raises(SpecError, match="-e") as refused:
        parse_env([pair], {})
    assert refused.value.hints


def test_tags() -> None:
    assert parse_tags(["team=vision", "best="]) == {"team": "vision", "best": ""}
    with pytest.raises(SpecError, match="--tag"):
        parse_tags(["team"])

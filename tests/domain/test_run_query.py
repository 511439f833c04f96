"""The query language of listings: values, laws, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.run_query import RunValues, parse_query, parse_sort, sort_key, unknown_names
from hopyard.errors import SpecError

RUN = RunValues(
    {
        "phase": "succeeded",
        "user": "alice",
        "took": 7300.0,
        "age": 86400.0,
        "submitted": 1.79e9,
        "label": None,
    },
    {"lr": 0.0005, "opt": "adam", "batch_size": 64, "flag": True, "text": "0.1", "acc": 3},
    {"val/loss": 0.2, "bad": math.nan, "up": math.inf, "acc": 0.5},
    {"val_acc": 0.95},
    {"team": "vision"},
)


@pytest.mark.parametrize(
    "query",
    [
        "val_acc > 0.9 and params.lr < 1e-3",
        "val_acc>0.9 AND NOT (opt = sgd or opt = 'rmsprop')",
        "opt in (sgd, adam)",
        "opt not in (sgd, lion)",
        "`val/loss` <= 0.2 and val/loss >= 0.2",
        "state = succeeded and user = alice",
        "took > 2h and took < 2h30m and age = 1d",
        "submitted > 2026-01-01 and submitted < 2100-01-01T10:00:00+02:00",
        "flag and flag = true and flag != false",
        "missing = null and label = null and lr != null",
        "bad = nan and up = inf and bad != 3 or nothing",
        "opt ~ DAM and tags.team ~ vis",
        "batch-size = 64 and params.batch-size = 6.4e1",
        "text = 0.1 and text < 1",
        "acc = 0.5 and params.acc = 3 and metrics.acc = 0.5",
        'team = "vision" and opt > aaa',
    ],
)
def test_query_accepts(query: str) -> None:
    assert parse_query(query).accepts(RUN)


@pytest.mark.parametrize(
    "query",
    [
        "missing",
        "missing != 3",
        "missing < 3 or missing >= 3 or missing in (1, 3) or missing not in (1)",
        "bad > 0 or bad <= 0 or bad = 0",
        "opt > 3 or lr < adam or flag > 0",
        "not val_acc",
        "summary.lr = 0.0005 or params.val_acc > 0",
    ],
)
def test_query_does_not_accept(query: str) -> None:
    assert not parse_query(query).accepts(RUN)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("", "the end comes where a name is expected"),
        ("lr <", "the end comes where a value is expected"),
        ("(lr < 1", "the end comes where a `)` is expected"),
        ("lr < 1 opt", "`opt` at character 8 is not expected here"),
        ("0.1 < lr", "`0.1 < lr` at character 1 is not a name"),
        ("lr ! 1", "`! 1` at character 4 cannot be read"),
        ("opt = 'a", "at character 7 cannot be read"),
        ("took > 2 parsecs", "`parsecs` at character 10"),
        ("took > far", "`far` at character 8 is not a duration"),
        ("submitted > soon", "`soon` at character 13 is not a time"),
        ("lr in 3", "`3` at character 7 comes where a `(` is expected"),
        ("lr not 3", "comes where `in` is expected"),
        ("(" * 60 + "lr" + ")" * 60, "nested too deeply"),
        ("x" * 2001, "at most 2000 characters"),
    ],
)
def test_mistakes_are_refused_with_their_position(query: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_query(query, what="--where")
    assert caught.value.message.startswith("--where: ")
    assert problem in caught.value.message


NUMBERS = st.one_of(st.integers(-(10**6), 10**6), st.floats(allow_nan=False))
NAMES = st.sampled_from(["lr", "val/loss", "params.x", "a-b", "größe"])
COMPARED = st.tuples(NAMES, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), NUMBERS)


def _holds(left: float, operator: str, right: float) -> bool:
    return bool(eval(f"left {'==' if operator == '=' else operator} right", {"left": left, "right": right}))


@given(st.lists(COMPARED, min_size=1, max_size=4), st.dictionaries(NAMES, NUMBERS), st.booleans())
def test_comparisons_are_those_of_numbers(
    comparisons: list[tuple[str, str, Any]], values: dict[str, Any], either: bool
) -> None:
    params = {name.removeprefix("params."): value for name, value in values.items()}
    text = (" or " if either else " and ").join(f"`{n}` {op} {v!r}" for n, op, v in comparisons)
    held = [
        (name := given_name.removeprefix("params.")) in params
        and _holds(params[name], operator, float(value))
        for given_name, operator, value in comparisons
    ]
    run = RunValues({}, params, {}, {}, {})
    assert parse_query(text).accepts(run) is (any(held) if either else all(held))
    assert parse_query(f"not ({text})").accepts(run) is not (any(held) if either else all(held))


@given(st.text("ab0.'\"`()<>=!~, \t\n-e\\ünotandrul", max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        query = parse_query(text)
    except SpecError as error:
        assert error.message.startswith("where: ")
    else:
        assert query.accepts(RUN) in (True, False)


def test_sorting_has_numbers_then_texts_then_missing_values() -> None:
    runs = [RunValues({}, {"x": value}, {}, {}, {}) for value in (2, "b", 0.5, "a", None, math.nan, True)]
    runs.append(RunValues({}, {}, {}, {}, {}))
    ascending = sorted(runs, key=sort_key("x", descending=False))
    assert [run.params.get("x") for run in ascending][:5] == [0.5, True, 2, "a", "b"]
    descending = sorted(runs, key=sort_key("params.x", descending=True))
    assert [run.params.get("x") for run in descending][:5] == [2, True, 0.5, "b", "a"]
    assert parse_sort("-val_acc") == parse_sort("`val_acc` desc") == ("val_acc", True)
    assert parse_sort("lr asc") == ("lr", False)


def test_unknown_names_have_closest_name() -> None:
    assert unknown_names(["val_ac", "params.lr", "zzz", "state"], [RUN]) == {"val_ac": "val_acc", "zzz": None}


@pytest.mark.parametrize("text", ["", " ", "-", "``", "- desc"])
def test_sort_needs_a_name(text: str) -> None:
    with pytest.raises(SpecError, match="names nothing"):
        parse_sort(text)


@pytest.mark.parametrize(
    ("query", "problem", "hint"),
    [
        ("phase = fialed", "`fialed` at character 9 is not a phase", "did you mean `failed`?"),
        ("state in (failed, 'cancled')", "is not a phase", "did you mean `cancelled`?"),
        ("phase != xyz", "is not a phase", "choose one of queued, starting"),
        (".lr=1", "`.lr=1` at character 1 is not a name", "the name comes first"),
        ("params. = 1", "is not a name", "the name comes first"),
    ],
)
def test_mistakes_that_would_select_nothing_are_named(query: str, problem: str, hint: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_query(query)
    assert problem in refused.value.message
    assert refused.value.hints[0].startswith(hint)


@pytest.mark.parametrize(
    "query", ["phase = SUCCEEDED", "phase ~ succ", "not phase = null", "phase in (failed, succeeded)"]
)
def test_phases_are_compared(query: str) -> None:
    assert parse_query(query).accepts(RUN)

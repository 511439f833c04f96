"""Ranges of a command line: every word has one meaning, or an error with the right word."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.config.search.range_line import is_searched, parse_search_words
from hopyard.config.search.space import read_space
from hopyard.domain.space import Choice, Constant, Domain, Integer, Uniform
from hopyard.errors import SpecError


def domain(word: str) -> Domain:
    return read_space(parse_search_words([f"x={word}"])).parameters[0].domain


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("log:1e-4..1e-1", Uniform(1e-4, 1e-1, log=True)),
        ("log:1.0..10", Uniform(1.0, 10.0, log=True)),
        ("0.0..0.5", Uniform(0.0, 0.5)),
        ("-1..0.5", Uniform(-1.0, 0.5)),
        ("float:0..1", Uniform(0.0, 1.0)),
        ("1..8", Integer(1, 8)),
        ("int:1..8", Integer(1, 8)),
        ("logint:16..256", Integer(16, 256, log=True)),
        ("16,32,64", Choice((16, 32, 64))),
        ("sgd, adam", Choice(("sgd", "adam"))),
        ("true,false", Choice((True, False))),
        ("[1000,200,200]", Constant("[1000,200,200]")),
        ("[64,64], [128]", Choice(("[64,64]", "[128]"))),
        ("{a: 1, b: [2, 3]},x", Choice(("{a: 1, b: [2, 3]}", "x"))),
        ("'1,2','3'", Choice(("1,2", "3"))),
        ("[1,2", Choice(("[1", 2))),
        ("loguniform(1e-4, 1e-1)", Uniform(1e-4, 1e-1, log=True)),
        ("choice([1, 2])", Choice((1, 2))),
        ("0.9", Constant(0.9)),
        ("adam", Constant("adam")),
        ("'16,32'", Constant("16,32")),
        ("../data", Constant("../data")),
        ("s3://bucket/a..b", Constant("s3://bucket/a..b")),
    ],
)
def test_word_is_a_range(word: str, expected: Domain) -> None:
    assert domain(word) == expected
    assert is_searched(parse_search_words([f"x={word}"])["x"]) == (not isinstance(expected, Constant))


@pytest.mark.parametrize(
    ("pairs", "problem", "hint"),
    [
        (["x=log:1..100"], "real or whole numbers?", "write logint:1..100, or log:1.0..100.0"),
        (["x=lgo:1e-4..1.0"], "there is no range `lgo:`", "did you mean `log:1e-4..1.0`?"),
        (["x=int:0.1..0.5"], "`0.1..0.5` are not whole numbers", "log:0.1..0.5"),
        (["x=log:a..b"], "has no two numbers", "for example log:1..8"),
        (["x=1,,2"], "has an empty value", "ranges:"),
        (["x"], "is not of the form K=V", "lr=log:1e-4..1e-1"),
        (["x=1", "x=2"], "`x` is given twice", "keep one"),
    ],
)
def test_unclear_word_is_refused_with_the_right_one(pairs: list[str], problem: str, hint: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_search_words(pairs)
    assert problem in refused.value.message
    assert any(hint in each for each in refused.value.hints)


def test_empty_range_is_refused_as_in_a_file() -> None:
    ranges: dict[str, Any] = parse_search_words(["x=8..1"])
    with pytest.raises(SpecError, match="x"):
        read_space(ranges)

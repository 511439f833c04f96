"""Amounts: round trips, and refusals with the allowed values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.config import units
from hopyard.errors import SpecError


@given(st.integers(0, 2**60))
def test_memory_round_trips(amount: int) -> None:
    assert units.parse_memory(units.format_memory(amount)) == amount


@given(st.integers(1, 10**9))
def test_cpus_round_trip(milli: int) -> None:
    assert units.parse_cpus(units.format_cpus(milli)) == milli


@given(st.integers(1, 86400 * 1000))
def test_seconds_round_trip(seconds: int) -> None:
    assert units.parse_time(units.format_time(seconds)) == seconds


@given(
    st.one_of(st.none(), st.from_regex(r"[A-Z][A-Za-z0-9-]{0,20}", fullmatch=True)), st.integers(1, 999_999)
)
def test_gpus_round_trip(model: str | None, number: int) -> None:
    assert units.parse_gpus(units.format_gpus(model, number)) == (model, number)


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_refused_with_a_hint(text: str) -> None:
    for parse in (units.parse_memory, units.parse_cpus, units.parse_time, units.parse_gpus):
        try:
            parse(text)
        except SpecError as refused:
            assert refused.hints


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("8G", 8 * 2**30),
        ("512MiB", 2**29),
        ("1.5g", 3 * 2**29),
        ("8GB", 8 * 10**9),
        ("0", 0),
        ("1048576", 2**20),
        ("10 kB", 10_000),
        ("0.1G", 2**30 // 10),
    ],
)
def test_memory(text: str, amount: int) -> None:
    assert units.parse_memory(text) == amount


@pytest.mark.parametrize(
    "text", ["", "G", "8X", "-1G", "8", "512", "1e3G", "8 G B", "99999999T", "nan", "9" * 5000 + "G"]
)
def test_invalid_memory_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        units.parse_memory(text)


def test_memory_without_unit_gives_a_suggestion() -> None:
    with pytest.raises(SpecError) as refused:
        units.parse_memory("8", what="--memory")
    assert refused.value.message == "--memory: `8` has no unit"
    assert refused.value.hints[0] == "did you mean `8G`?"


@pytest.mark.parametrize(("text", "milli"), [("4", 4000), ("0.5", 500), ("1.25", 1250), ("0.001", 1)])
def test_cpus(text: str, milli: int) -> None:
    assert units.parse_cpus(text) == milli


@pytest.mark.parametrize("text", ["0", "-1", "0.0001", "two", "", "1e3", "٣", "1,5"])
def test_invalid_cpus_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="CPUs"):
        units.parse_cpus(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3600", 3600),
        ("2h", 7200),
        ("90m", 5400),
        ("2h30m", 9000),
        ("1d12h", 129600),
        ("1.5s", 1.5),
        ("0.5", 0.5),
        ("2h 30m", 9000),
    ],
)
def test_time(text: str, seconds: float) -> None:
    assert units.parse_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "2x", "h", "m30", "30m2h", "1e9", "99999d", "nan", "inf", "9" * 5000 + "d"]
)
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        units.parse_time(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", (None, 0)),
        ("2", (None, 2)),
        ("A100", ("A100", 1)),
        ("A100:8", ("A100", 8)),
        ("RTX 4090:2", ("RTX 4090", 2)),
    ],
)
def test_gpus(text: str, expected: tuple[str | None, int]) -> None:
    assert units.parse_gpus(text) == expected


@pytest.mark.parametrize(
    "text", ["", "-1", ":2", "A100:", "A100:x", "A100:0", "A100;1", "1.5", "nan", "Inf", "infinity:2"]
)
def test_invalid_gpus_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        units.parse_gpus(text)

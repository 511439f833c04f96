"""Spans in words."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.duration_text import format_duration, format_time_until, format_whole_duration

SIZES = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def test_time_until_text() -> None:
    result = [format_time_until(at) for at in (-3, 0, 0.99, 1, 40, 59.6, 85, 720, 5 * 3600, 3 * 86400)]
    assert result == [
        "now",
        "now",
        "now",
        "in 1 s",
        "in 40 s",
        "in 1 min",
        "in 1 min 25 s",
        "in 12 min",
        "in 5 h",
        "in 3 d",
    ]


@given(st.floats(10, 1e9))
def test_duration_texts_agree_from_ten_seconds_on(seconds: float) -> None:
    assert (
        format_duration(seconds)
        == format_whole_duration(seconds)
        == format_time_until(seconds).removeprefix("in ")
    )


@given(st.floats(0, 1e9))
def test_duration_text_is_close_to_the_duration(seconds: float) -> None:
    text = sum(
        int(count) * SIZES[unit]
        for count, unit in re.findall(r"(\d+) (min|s|h|d)", format_whole_duration(seconds))
    )
    smallest = 1 if seconds < 3599 else 60 if seconds < 86399 else 3600
    assert text - 0.5 <= seconds < text + smallest + 0.5

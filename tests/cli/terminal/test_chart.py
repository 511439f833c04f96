"""Curves as characters."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.cli.terminal.chart import ChartCell, Curve, draw_chart

FINITE = st.floats(-1e12, 1e12, allow_nan=False)


def text(rows: list[list[ChartCell]]) -> str:
    return "\n".join("".join(cell.text for cell in row).rstrip() for row in rows)


def test_chart_without_unicode() -> None:
    picture = draw_chart(
        [Curve("a", [0, 10], [0, 1]), Curve("b", [0, 10], [1, 0])], width=40, height=8, unicode=False
    )
    assert text(picture).splitlines() == [
        "  1 +xxxx                           oooo",
        "    |    xxxxxxx             ooooooo",
        "0.5 +           xxxxxxxoooooo",
        "    |           oooooooxxxxxx",
        "    |    ooooooo             xxxxxxx",
        "  0 +oooo                           xxxx",
        "    +-----------------------------------",
        "     0                5               10",
    ]


@pytest.mark.parametrize("unicode", [True, False])
def test_every_row_fits_the_width(unicode: bool) -> None:
    rows = draw_chart(
        [Curve("loss", list(range(1000)), [math.exp(-i / 200) for i in range(1000)])],
        width=80,
        height=16,
        unicode=unicode,
    )
    assert len(rows) == 16
    assert all(len(line) <= 80 for line in text(rows).splitlines())


@given(
    st.lists(
        st.tuples(st.integers(-(10**9), 10**9), st.one_of(FINITE, st.just(math.nan), st.just(math.inf))),
        max_size=30,
    ),
    st.booleans(),
)
def test_any_points_are_drawn(points: list[tuple[int, float]], unicode: bool) -> None:
    points.sort(key=lambda point: point[0])
    rows = draw_chart(
        [Curve("a", [x for x, _ in points], [y for _, y in points])], width=60, height=10, unicode=unicode
    )
    if any(math.isfinite(y) for _, y in points):
        assert len(rows) == 10
        assert any(cell.curve == 0 for row in rows for cell in row)
    else:
        assert rows == []


@pytest.mark.parametrize("unicode", [True, False])
def test_largest_floats_are_drawn(unicode: bool) -> None:
    largest = sys.float_info.max
    rows = draw_chart(
        [Curve("a", [0, 1, 2], [largest, -largest, math.inf])], width=40, height=8, unicode=unicode
    )
    assert len(rows) == 8 and any(cell.curve == 0 for row in rows for cell in row)
    assert draw_chart([Curve("a", [0], [largest])], width=40, height=8, unicode=unicode)

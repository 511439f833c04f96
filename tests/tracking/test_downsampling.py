"""The points of a series that downsampling retains."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hopyard.tracking.downsampling import extreme_positions, peak_positions


@given(st.lists(st.floats(), min_size=1, max_size=200), st.integers(1, 60))
def test_downsampling_keeps_ends_peaks_and_order(values: list[float], max_points: int) -> None:
    positions = list(extreme_positions(values, max_points))
    assert len(positions) <= max_points
    assert positions == sorted(set(positions))
    assert positions[-1] == len(values) - 1
    numbers = [value for value in values if not math.isnan(value)]
    if max_points >= 4 and numbers:
        assert positions[0] == 0
        kept_numbers = [values[at] for at in positions if not math.isnan(values[at])]
        assert (min(kept_numbers), max(kept_numbers)) == (min(numbers), max(numbers))


@given(st.lists(st.integers(0, 1 << 40), max_size=200), st.integers(1, 60))
def test_downsampling_by_peaks_keeps_the_maximum_and_order(values: list[int], max_points: int) -> None:
    positions = list(peak_positions(values, max_points))
    assert len(positions) == min(len(values), max_points)
    assert positions == sorted(set(positions))
    assert not values or max(values[at] for at in positions) == max(values)

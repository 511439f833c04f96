from __future__ import annotations

import math

import pytest

from hopyard.domain.moving_average import moving_average


def test_moving_average_starts_without_bias_and_skips_gaps() -> None:
    assert moving_average([2.0, 2.0, 2.0], 0.9) == pytest.approx([2.0, 2.0, 2.0])
    result = moving_average([1.0, math.nan, 3.0], 0.5)
    assert result[0] == 1.0
    assert math.isnan(result[1])
    assert 1.0 < result[2] < 3.0

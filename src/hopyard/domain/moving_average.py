"""Smoothing of curves, as the charts of the web UI do it, too."""

from __future__ import annotations

import math
from collections.abc import Sequence


def moving_average(values: Sequence[float], weight: float) -> list[float]:
    """Returns the exponential moving average, without its initial bias towards 0. Values that are not finite
    pass unchanged."""
    result, total, norm = [], 0.0, 0.0
    for value in values:
        if math.isfinite(value):
            total, norm = weight * total + (1 - weight) * value, weight * norm + (1 - weight)
            result.append(total / norm)
        else:
            result.append(value)
    return result

"""The lowest and the highest value of a metric, each with its step."""

from __future__ import annotations

import math
from collections.abc import Iterable

StepValue = tuple[int, float]
Extremes = tuple[StepValue, StepValue]


def merge_extremes(parts: Iterable[Extremes]) -> Extremes:
    """Returns the extremes of several parts of one curve. NaN is neither low nor high unless all values are
    NaN; of equal values the first part counts."""
    listed = list(parts)
    numbers = [part for part in listed if not math.isnan(part[0][1])] or listed[:1]
    lowest = min((low for low, _ in numbers), key=lambda point: point[1])
    highest = max((high for _, high in numbers), key=lambda point: point[1])
    return lowest, highest

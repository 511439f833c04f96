"""Values of metrics in JSON, which has no numbers for NaN and infinity: they are texts there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

NonFinite = Literal["NaN", "Infinity", "-Infinity"]
MetricValue = float | NonFinite


def encode_value(value: float) -> MetricValue:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def encode_values(values: Mapping[str, float]) -> dict[str, MetricValue]:
    return {name: encode_value(value) for name, value in values.items()}


def decode_value(value: float | str | None) -> float:
    """Returns the number. None, from an older server, is NaN; so is a text that is not a number."""
    try:
        return math.nan if value is None else float(value)
    except ValueError:
        return math.nan

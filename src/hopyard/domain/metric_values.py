"""Values of metrics and parameters in JSON, which has no numbers for NaN and infinity: these are texts."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Literal, get_args

NonFinite = Literal["NaN", "Infinity", "-Infinity"]
if sys.version_info >= (3, 10):
    MetricValue = float | NonFinite
else:  # annotations, which name it, are not evaluated
    MetricValue = object


def encode_value(value: float) -> MetricValue:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def encode_values(values: Mapping[str, float]) -> dict[str, MetricValue]:
    return {name: encode_value(value) for name, value in values.items()}


def encode_param(value: str | int | float | bool | None) -> str | int | float | bool | None:
    """Returns the value of a parameter for JSON. `hop.params` reads the text as the number again."""
    return encode_value(value) if isinstance(value, float) else value


def may_be_number(value: str | int | float | bool | None) -> bool:
    """Returns whether this text is one that `encode_param` writes for a number. The parameter may also be a
    text itself: only its script knows."""
    return value in get_args(NonFinite)


def decode_value(value: float | str | None) -> float:
    """Returns the number. None, from an older server, is NaN; so is a text that is not a number."""
    try:
        return math.nan if value is None else float(value)
    except ValueError:
        return math.nan

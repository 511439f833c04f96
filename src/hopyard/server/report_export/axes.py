"""Axes of pictures: where values are, and round ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from hopyard.config.units import format_time
from hopyard.domain.axis_ticks import choose_ticks

AxisText = Literal["number", "time", "duration"]
_UNITS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def format_number(value: float) -> str:
    """Returns a short text: `0.0123`, `1.5k`, `3e-08`."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    size = abs(value)
    for unit, factor in _UNITS:
        if size >= 10 * factor or (size >= factor and value % (factor / 100) == 0):
            return f"{value / factor:.6g}{unit}"
    return f"{value:.6g}"


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """A range of values, mapped to 0 … 1."""

    low: float
    high: float
    is_log: bool = False
    text: AxisText = "number"

    def place(self, value: float) -> float | None:
        """Returns where the value is; None for one that has no place."""
        if not math.isfinite(value) or (self.is_log and value <= 0):
            return None
        low, high = self._scaled(self.low), self._scaled(self.high)
        return 0.5 if high <= low else (self._scaled(value) - low) / (high - low)

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Returns places and texts of about so many round values."""
        values = (
            _log_ticks(self.low, self.high)
            if self.is_log and self.high >= 10 * self.low
            else _round_ticks(self.low, self.high, count)
        )
        return [(place, self.format(value)) for value in values if (place := self.place(value)) is not None]

    def format(self, value: float) -> str:
        if self.text == "duration":
            return format_time(value) if value >= 1 else format_number(value)
        if self.text == "time":
            try:
                return datetime.fromtimestamp(value, UTC).strftime("%m-%d %H:%M")
            except (OverflowError, ValueError, OSError):
                return format_number(value)
        return format_number(value)

    def _scaled(self, value: float) -> float:
        return (
            math.log10(value) if self.is_log else value / 2
        )  # the largest floats have a finite distance then


def fit_axis(values: Sequence[float], *, is_log: bool = False, text: AxisText = "number") -> PlotAxis | None:
    """Returns the axis of the values that have a place; None if there is none."""
    shown = [value for value in values if math.isfinite(value) and (value > 0 or not is_log)]
    return PlotAxis(min(shown), max(shown), is_log, text) if shown else None


def _round_ticks(low: float, high: float, count: int) -> list[float]:
    if not high > low:
        return [low]
    rough = (high - low) / count
    if not (math.isfinite(rough) and rough > 0):
        return [low, high]
    return [float(f"{tick:.12g}") for tick in choose_ticks(low, high, count)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, math.ceil((last - first) / 6))
    return [10.0**power for power in range(first, last + 1, step) if low <= 10.0**power <= high]

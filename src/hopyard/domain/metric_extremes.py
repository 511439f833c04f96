"""The lowest and the highest value of a metric, each with its step."""

from __future__ import annotations

StepValue = tuple[int, float]
Extremes = tuple[StepValue, StepValue]

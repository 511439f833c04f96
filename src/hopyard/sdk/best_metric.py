"""The metric by which the best checkpoint of a run is chosen, and its best value so far. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from hopyard.errors import SpecError

_VALIDATION_NAME = re.compile(r"(^|[_./-])(val|valid|validation|eval|dev|test)([_./-]|\Z)", re.I)


class BestMetric:
    """Chooses the metric: the one that the script requests, else the first one in its summary, else the first
    logged one of a validation set."""

    def __init__(self) -> None:
        self._requested, self._higher = "", True
        self._best_value: float | None = None

    def request(self, text: str) -> None:
        """Sets the metric from `val_loss`, `max:val_acc` or `min:val_loss`. Raises SpecError."""
        direction, separator, name = text.partition(":") if isinstance(text, str) else ("", "", "")
        if separator and direction in ("max", "min"):
            higher = direction == "max"
        else:
            from hopyard.domain.metric_direction import higher_is_better

            name = text
            higher = isinstance(text, str) and higher_is_better(text)
        if not isinstance(name, str) or not name:
            raise SpecError(
                f"hop.loop: keep_best={text!r}",
                hints=('give the name of a metric: keep_best="val_loss" or keep_best="max:val_acc"',),
            )
        if (name, higher) != (self._requested, self._higher):
            self._best_value = None
        self._requested, self._higher = name, higher

    def continue_from(self, metrics: Mapping[str, float]) -> None:
        """Continues with the value of a restored checkpoint."""
        value = metrics.get(self._requested)
        if self._requested and value is not None:
            self.is_improved_by({self._requested: value})

    def is_improved_by(self, latest: Mapping[str, float]) -> bool:
        """Returns whether the requested metric has a better value than ever before, and remembers it."""
        value = latest.get(self._requested) if self._requested else None
        if value is None or math.isnan(value):
            return False
        best = self._best_value
        if best is not None and not (value > best if self._higher else value < best):
            return False
        self._best_value = value
        return True

    def rule(self, summary: Mapping[str, float], metrics: Mapping[str, float]) -> str:
        """Returns the rule as a checkpoint records it: `max:val_acc` as requested, `val_acc` as derived from
        the results of the script, or ""."""
        if self._requested:
            return f"{'max' if self._higher else 'min'}:{self._requested}"
        names = [name for name in summary if name in metrics]
        names += [name for name in metrics if _VALIDATION_NAME.search(name)]
        return names[0] if names else ""

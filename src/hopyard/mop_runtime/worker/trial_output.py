"""What the user's code logs and prints while a unit runs, by trial."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, SupportsIndex

from hopyard.sdk import session
from hopyard.sdk.metrics import Loggable, to_numbers


class UnitMetrics:
    """Takes the place of the metric stream for `hop.log`. A hop may be repeated, and its worker may be lost:
    so the driver writes the metrics, with the report of the epoch."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def write(self, step: SupportsIndex | None, metrics: Mapping[str, Loggable]) -> None:
        del step  # all values of a hop become one
        for name, value in to_numbers(metrics, function="hop.log").items():
            self._values.setdefault(name, []).append(value)

    def means(self) -> dict[str, float]:
        return {name: sum(values) / len(values) for name, values in self._values.items()}


class PrefixedOutput:
    """A text stream that begins each line with a prefix."""

    def __init__(self, stream: Any, prefix: str) -> None:
        self._stream, self._prefix, self._is_line_start = stream, prefix, True

    def write(self, text: str) -> int:
        if text:
            lines = text.splitlines(keepends=True)
            first = self._prefix if self._is_line_start else ""
            self._stream.write(first + self._prefix.join(lines))
            self._is_line_start = text.endswith("\n")
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def trial_output(trial: str) -> Iterator[UnitMetrics]:
    """In the block, `hop.log` writes to the returned metrics, and lines of stdout begin with the trial."""
    metrics, stdout = UnitMetrics(), sys.stdout
    session.metric_sink = metrics
    sys.stdout = PrefixedOutput(stdout, f"trial {trial}: ")
    try:
        yield metrics
    finally:
        session.metric_sink = None
        if isinstance(sys.stdout, PrefixedOutput):  # otherwise the user's code has replaced it
            sys.stdout = stdout

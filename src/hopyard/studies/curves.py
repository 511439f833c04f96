"""The curves of a study: a metric for each trial, and the best so far, in the metrics of the study's own run.

A new driver logs the points that are in the journal but not in the curves. The attempt before may have been
killed between both writes. If it saved no checkpoint, its logged points are not visible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hopyard.domain.metric_records import NO_STEP, read_point_blocks
from hopyard.domain.study import Goal
from hopyard.errors import IntegrityError

if TYPE_CHECKING:
    from hopyard.api_client import types as api


class LogMetrics(Protocol):
    """`hop.log`."""

    def __call__(self, values: Mapping[str, float], /, *, step: int) -> None: ...


class Curves:
    """all_metrics: log all metrics of trials, otherwise only the study's. known_points: points, as (name,
    step), that are logged already."""

    def __init__(
        self,
        metric: str,
        goal: Goal,
        log: LogMetrics,
        *,
        all_metrics: bool,
        known_points: Iterable[tuple[str, int]] = (),
    ) -> None:
        self._metric, self._goal, self._log, self._all_metrics = metric, goal, log, all_metrics
        self._known_points = set(known_points)
        self._best: float | None = None
        self._reports = 0

    def record_report(self, trial: str, step: int, metrics: Mapping[str, float]) -> None:
        """Records a report; called once for each report to the searcher, in order."""
        value = metrics.get(self._metric, math.nan)
        if not math.isfinite(value):
            return
        self._reports += 1
        if self._best is None or (value > self._best if self._goal is Goal.MAX else value < self._best):
            self._best = value
        shown = metrics if self._all_metrics else {self._metric: value}
        self._log_new({f"{name}/{trial}": number for name, number in shown.items()}, step)
        self._log_new({f"best/{self._metric}": self._best}, self._reports)

    def replay(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Replays a whole journal."""
        for record in records:
            if (
                record.get("kind") == "told"
                and record["report"]["outcome"] == "running"
                and record["report"]["value"] is not None
            ):
                self.record_report(
                    str(record["report"]["trial"]), int(record["report"]["step"]), record.get("metrics") or {}
                )

    def _log_new(self, values: Mapping[str, float], step: int) -> None:
        new_values = {name: value for name, value in values.items() if (name, step) not in self._known_points}
        if new_values:
            self._known_points.update((name, step) for name in new_values)
            self._log(new_values, step=step)


def read_points(file: Path) -> set[tuple[str, int]]:
    """Returns the points in a metric stream on this disk; a damaged one is read up to the damage."""
    points: set[tuple[str, int]] = set()
    names: dict[int, str] = {}
    try:
        for part in read_point_blocks(file.read_bytes(), names):
            if not isinstance(part, int):
                points.update(
                    (names.get(series, ""), step) for _, series, step, _, _ in part if step != NO_STEP
                )
    except (OSError, IntegrityError):
        pass
    return points


def displayed_points(series: Mapping[str, api.SeriesOut]) -> set[tuple[str, int]]:
    """Returns the points that the server displays, from the answer of `GET /runs/{id}/metrics`."""
    return {(name, step) for name, points in series.items() for step in points["steps"]}

"""From the metric streams of a trial's run to reports by epoch: every one, in order, whatever the script
counts in. Pure.

A script reports its study's metric once an epoch, mostly by `hop.log(val_acc=…, step=epoch)`. What its steps
mean is told by the first one of an attempt: one that is not beyond the epochs that were done counts from 0,
else from 1; one that is beyond the last epoch is no epoch at all (a batch, a second), and reports are counted
instead, as they are where there is no step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hopyard.domain.metric_records import NO_STEP, read_point_blocks, series_id
from hopyard.errors import IntegrityError


@dataclass(frozen=True, slots=True)
class MetricReport:
    """One report of the metric. step: None where the script gave none.
    metrics: all that it had reported by then."""

    step: int | None
    metrics: Mapping[str, float]


class MetricStreamParser:
    """The reports in one metric stream that comes in pieces. A damaged one is read up to the damage."""

    def __init__(self, metric: str) -> None:
        self._series = series_id(metric)
        self._remainder = b""
        self._names: dict[int, str] = {}
        self._latest: dict[int, float] = {}
        self._damaged = False

    @property
    def names(self) -> set[str]:
        """All metrics in it."""
        return set(self._names.values())

    def parse(self, data: bytes) -> list[MetricReport]:
        if self._damaged:
            return []
        joined = self._remainder + data
        used, rows = 0, _ReportBuilder(self._series, self._names, self._latest)
        try:
            for part in read_point_blocks(joined, self._names):
                if isinstance(part, int):
                    used = part
                else:
                    for _, series, step, time, value in part:
                        rows.add_point(series, step, time, value)
        except IntegrityError:
            self._damaged = True
        self._remainder = joined[used:]
        rows.flush()
        return rows.reports


class _ReportBuilder:
    """Points of one time were logged together, so a report has also those that stand behind it."""

    def __init__(self, metric: int, names: dict[int, str], latest: dict[int, float]) -> None:
        self._metric, self._names, self._latest = metric, names, latest
        self._step: int | None = None
        self._time: float | None = None  # of a report that is not complete yet
        self.reports: list[MetricReport] = []

    def add_point(self, series: int, step: int, time: float, value: float) -> None:
        if self._time is not None and (time != self._time or series == self._metric):
            self.flush()
        self._latest[series] = value
        if series == self._metric:
            self._step, self._time = None if step == NO_STEP else step, time

    def flush(self) -> None:
        if self._time is not None:
            self.reports.append(
                MetricReport(
                    self._step, {self._names.get(series, ""): value for series, value in self._latest.items()}
                )
            )
            self._time = None


@dataclass(slots=True)
class EpochCounter:
    """Which epoch each report of one attempt belongs to.
    start_epoch: epochs that were done when it began; last_epoch: the largest epoch that the script is to
    do."""

    start_epoch: int
    last_epoch: int
    _count: int = 0
    _offset: int | None = None
    _counts_reports: bool = field(default=False)

    def epoch_of(self, step: int | None) -> int:
        """May be beyond `last`: the script goes on longer than it was told to."""
        self._count += 1
        if step is None:
            return self.start_epoch + self._count
        if self._offset is None:
            self._offset = 1 if step <= self.start_epoch else 0
            self._counts_reports = step + self._offset > self.last_epoch
        return self.start_epoch + self._count if self._counts_reports else step + self._offset

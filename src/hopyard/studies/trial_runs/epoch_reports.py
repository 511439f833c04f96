"""Converts the metric streams of a trial's run to reports by epoch: all epochs, in order, for any unit of the
script's steps. Pure.

A script reports its study's metric once per epoch, mostly with `hop.log(val_acc=…, step=epoch)`. The first
step of an attempt determines the meaning of its steps. A step within the completed epochs means that the
script counts from 0, otherwise from 1. A step beyond the last epoch is not an epoch (but a batch or a
second). Then the reports are counted instead, as for reports without a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hopyard.domain.metric_records import NO_STEP, read_point_blocks, series_id
from hopyard.errors import IntegrityError


@dataclass(frozen=True, slots=True)
class MetricReport:
    """One report of the metric. step: None if the script gave none. metrics: the latest values at
    that time."""

    step: int | None
    metrics: Mapping[str, float]


class MetricStreamParser:
    """Parses the reports in one metric stream that arrives in pieces. A damaged stream is read up to the
    damage."""

    def __init__(self, metric: str) -> None:
        self._series = series_id(metric)
        self._remainder = b""
        self._names: dict[int, str] = {}
        self._latest: dict[int, float] = {}
        self._damaged = False

    @property
    def names(self) -> set[str]:
        """The names of all metrics in the stream."""
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
    """Groups points by time: points with one time were logged together, so a report includes the later ones
    of them."""

    def __init__(self, metric: int, names: dict[int, str], latest: dict[int, float]) -> None:
        self._metric, self._names, self._latest = metric, names, latest
        self._step: int | None = None
        self._time: float | None = None  # of an incomplete report
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
    """Determines the epoch of each report of one attempt. start_epoch: completed epochs at its start;
    last_epoch: the last epoch that the script must do."""

    start_epoch: int
    last_epoch: int
    _count: int = 0
    _offset: int | None = None
    _counts_reports: bool = field(default=False)

    def epoch_of(self, step: int | None) -> int:
        """Returns the epoch, which may exceed `last_epoch` if the script ignores its budget."""
        self._count += 1
        if step is None:
            return self.start_epoch + self._count
        if self._offset is None:
            self._offset = 1 if step <= self.start_epoch else 0
            self._counts_reports = step + self._offset > self.last_epoch
        return self.start_epoch + self._count if self._counts_reports else step + self._offset

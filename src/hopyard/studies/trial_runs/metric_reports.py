"""Parses the metric streams of a trial's run to reports of the study's metric. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hopyard.domain.metric_records import NO_STEP, read_point_blocks, series_id
from hopyard.errors import IntegrityError


@dataclass(frozen=True, slots=True)
class MetricReport:
    """One report of the metric. step: None if the script gave none. metrics: the latest values at
    that time. time: unix seconds."""

    step: int | None
    metrics: Mapping[str, float]
    time: float = field(default=0.0, compare=False)


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
                    self._step,
                    {self._names.get(series, ""): value for series, value in self._latest.items()},
                    self._time,
                )
            )
            self._time = None

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

from hopyard.domain.points import NO_STEP, read_stretches, series_of
from hopyard.errors import IntegrityError


@dataclass(frozen=True, slots=True)
class Row:
    """One report of the metric. step: None where the script gave none.
    metrics: all that it had reported by then."""

    step: int | None
    metrics: Mapping[str, float]


class StreamRows:
    """The reports in one metric stream that comes in pieces. A damaged one is read up to the damage."""

    def __init__(self, metric: str) -> None:
        self._series = series_of(metric)
        self._rest = b""
        self._names: dict[int, str] = {}
        self._latest: dict[int, float] = {}
        self._damaged = False

    @property
    def names(self) -> set[str]:
        """All metrics in it."""
        return set(self._names.values())

    def feed(self, data: bytes) -> list[Row]:
        if self._damaged:
            return []
        joined = self._rest + data
        used, rows = 0, _Rows(self._series, self._names, self._latest)
        try:
            for part in read_stretches(joined, self._names):
                if isinstance(part, int):
                    used = part
                else:
                    for _, series, step, time, value in part:
                        rows.take(series, step, time, value)
        except IntegrityError:
            self._damaged = True
        self._rest = joined[used:]
        rows.flush()
        return rows.found


class _Rows:
    """Points of one time were logged together, so a report has also those that stand behind it."""

    def __init__(self, wanted: int, names: dict[int, str], latest: dict[int, float]) -> None:
        self._wanted, self._names, self._latest = wanted, names, latest
        self._step: int | None = None
        self._time: float | None = None  # of a report that is not complete yet
        self.found: list[Row] = []

    def take(self, series: int, step: int, time: float, value: float) -> None:
        if self._time is not None and (time != self._time or series == self._wanted):
            self.flush()
        self._latest[series] = value
        if series == self._wanted:
            self._step, self._time = None if step == NO_STEP else step, time

    def flush(self) -> None:
        if self._time is not None:
            self.found.append(
                Row(
                    self._step, {self._names.get(series, ""): value for series, value in self._latest.items()}
                )
            )
            self._time = None


@dataclass(slots=True)
class Epochs:
    """Which epoch each report of one attempt belongs to.
    begun: epochs that were done when it began; last: the largest epoch that the script is to do."""

    begun: int
    last: int
    _count: int = 0
    _offset: int | None = None
    _counts: bool = field(default=False)

    def of(self, step: int | None) -> int:
        """May be beyond `last`: the script goes on longer than it was told to."""
        self._count += 1
        if step is None:
            return self.begun + self._count
        if self._offset is None:
            self._offset = 1 if step <= self.begun else 0
            self._counts = step + self._offset > self.last
        return self.begun + self._count if self._counts else step + self._offset

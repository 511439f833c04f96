"""The units of each worker over time: the data of a Gantt chart, and its idle time.

Between two attempts (the study was preempted, or ended and was resumed) there are no workers. Such a break
does not count as idle time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hopyard.studies.view.study_view import Bar, StudyView


@dataclass(frozen=True, slots=True)
class GanttRow:
    """One worker. idle_s: time without a unit, between the study's first start and last end of a unit."""

    worker: str
    bars: tuple[Bar, ...]
    busy_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Gantt:
    """began_at, ended_at: unix seconds of the first unit's start and the last unit's end. gaps_s: the pauses
    between consecutive units of a worker, sorted. breaks: from the last unit's end of an attempt to the next
    attempt's first unit."""

    rows: tuple[GanttRow, ...]
    began_at: float
    ended_at: float
    gaps_s: tuple[float, ...]
    breaks: tuple[tuple[float, float], ...] = ()

    @property
    def span_s(self) -> float:
        return self.ended_at - self.began_at

    @property
    def attended_s(self) -> float:
        """The span without the breaks."""
        return self.span_s - sum(end - start for start, end in self.breaks)

    @property
    def idle_share(self) -> float:
        """The idle share of all workers' time; 0 to 1."""
        total_s = self.attended_s * len(self.rows)
        return sum(row.idle_s for row in self.rows) / total_s if total_s > 0 else 0.0

    def gap_s(self, share: float) -> float | None:
        """Returns the pause that a `share` (0 to 1) of all pauses does not exceed."""
        if not self.gaps_s:
            return None
        return self.gaps_s[min(len(self.gaps_s) - 1, int(share * len(self.gaps_s)))]


def gantt(view: StudyView, *, epochs: tuple[int, int] | None = None) -> Gantt:
    """Returns the chart of all units, or of those in epochs first … last (from 0)."""
    bars = [bar for bar in view.bars if epochs is None or epochs[0] <= bar.epoch <= epochs[1]]
    if not bars:
        return Gantt((), 0.0, 0.0, ())
    began_at, ended_at = min(bar.began_at for bar in bars), max(bar.ended_at for bar in bars)
    breaks = _breaks(bars)
    attended = ended_at - began_at - sum(busy_until - start for start, busy_until in breaks)
    rows, gaps = [], []
    for worker in sorted({bar.worker for bar in bars}, key=_natural_order):
        worker_bars = sorted(
            (bar for bar in bars if bar.worker == worker), key=lambda bar: (bar.began_at, bar.ended_at)
        )
        busy, busy_until, attempt = 0.0, began_at, 0
        for bar in worker_bars:
            if bar.attempt == attempt and bar.began_at > busy_until:
                gaps.append(bar.began_at - busy_until)
            busy += max(0.0, bar.ended_at - max(busy_until, bar.began_at))
            busy_until, attempt = max(busy_until, bar.ended_at), bar.attempt
        rows.append(GanttRow(worker, tuple(worker_bars), busy, attended - busy))
    return Gantt(tuple(rows), began_at, ended_at, tuple(sorted(gaps)), breaks)


def _breaks(bars: Sequence[Bar]) -> tuple[tuple[float, float], ...]:
    """Returns no break if the clocks of several machines make attempts overlap."""
    attempts = [
        list(attempt_bars)
        for _, attempt_bars in groupby(sorted(bars, key=lambda bar: bar.attempt), key=lambda bar: bar.attempt)
    ]
    breaks, start = [], float("-inf")
    for index, attempt_bars in enumerate(attempts[:-1]):
        start = max(start, *(bar.ended_at for bar in attempt_bars))
        end = min(bar.began_at for later in attempts[index + 1 :] for bar in later)
        if end > start:
            breaks.append((start, end))
    return tuple(breaks)


def as_data(chart: Gantt) -> dict[str, Any]:
    """Returns the data for programs and the UI: seconds count from the first unit's start."""
    return {
        "began_at": chart.began_at,
        "span_s": chart.span_s,
        "idle_share": chart.idle_share,
        "gap_median_s": chart.gap_s(0.5),
        "gap_p99_s": chart.gap_s(0.99),
        "breaks": [
            {"from_s": start - chart.began_at, "to_s": end - chart.began_at} for start, end in chart.breaks
        ],
        "workers": [
            {
                "worker": row.worker,
                "busy_s": row.busy_s,
                "idle_s": row.idle_s,
                "units": [
                    {
                        "trial": bar.trial,
                        "epoch": bar.epoch,
                        "partition": bar.partition,
                        "kind": bar.kind,
                        "from_s": bar.began_at - chart.began_at,
                        "to_s": bar.ended_at - chart.began_at,
                    }
                    for bar in row.bars
                ],
            }
            for row in chart.rows
        ],
    }


BREAK = ""
"""The cell of a break, in place of a trial."""


def timeline_strips(chart: Gantt, columns: int) -> list[list[str | None]]:
    """Returns, for each worker, the trial that fills most of each of `columns` equal intervals; None if it
    was mostly idle, BREAK if there were no workers."""
    if not chart.rows or chart.span_s <= 0 or columns < 1:
        return [[None] * max(0, columns) for _ in chart.rows]
    width = chart.span_s / columns
    absent = [
        sum(part for _, part in cell)
        for cell in _cells(((start, end, BREAK) for start, end in chart.breaks), chart, width, columns)
    ]
    return [
        [
            _dominant_trial(cell, width, absent_s)
            for cell, absent_s in zip(
                _cells(((bar.began_at, bar.ended_at, bar.trial) for bar in row.bars), chart, width, columns),
                absent,
                strict=True,
            )
        ]
        for row in chart.rows
    ]


def _cells(
    intervals: Iterable[tuple[float, float, str]], chart: Gantt, width: float, columns: int
) -> list[list[tuple[str, float]]]:
    """Returns for each of the equal cells its contents and their seconds."""
    cells: list[list[tuple[str, float]]] = [[] for _ in range(columns)]
    for began_at, ended_at, label in intervals:
        first = min(columns - 1, int((began_at - chart.began_at) / width))
        last = min(columns - 1, int((ended_at - chart.began_at) / width))
        for index in range(first, last + 1):
            low, high = chart.began_at + index * width, chart.began_at + (index + 1) * width
            overlap_s = min(ended_at, high) - max(began_at, low)
            if overlap_s > 0:
                cells[index].append((label, overlap_s))
    return cells


def _dominant_trial(cell: Sequence[tuple[str, float]], width: float, absent: float) -> str | None:
    """absent: the seconds without workers."""
    seconds_by_trial: dict[str, float] = {}
    for trial, seconds in cell:
        seconds_by_trial[trial] = seconds_by_trial.get(trial, 0.0) + seconds
    if absent > width / 2:
        return BREAK
    if sum(seconds_by_trial.values()) < (width - absent) / 2:
        return None
    return max(sorted(seconds_by_trial), key=lambda trial: seconds_by_trial[trial])


def _natural_order(worker: str) -> tuple[int, str]:
    """Sorts numbered workers by number: 2 before 10."""
    digits = "".join(ch for ch in worker if ch.isdecimal())
    return (int(digits) if digits else 0, worker)

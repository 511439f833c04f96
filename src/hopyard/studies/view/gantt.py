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
    """One worker. idle_s: between the first unit of the study and its last one's end, without a unit."""

    worker: str
    bars: tuple[Bar, ...]
    busy_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Gantt:
    """began_at, ended_at: unix seconds of the first unit's beginning and the last one's end. gaps_s: every
    pause between two units that followed each other on a worker, sorted. breaks: from the last unit's end of
    an attempt to the next one's first unit."""

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
        """Without the breaks."""
        return self.span_s - sum(until - since for since, until in self.breaks)

    @property
    def idle_share(self) -> float:
        """Of all workers' time, what was idle; 0 to 1."""
        whole = self.attended_s * len(self.rows)
        return sum(row.idle_s for row in self.rows) / whole if whole > 0 else 0.0

    def gap_s(self, share: float) -> float | None:
        """The pause that `share` (0 to 1) of all pauses do not exceed."""
        if not self.gaps_s:
            return None
        return self.gaps_s[min(len(self.gaps_s) - 1, int(share * len(self.gaps_s)))]


def gantt(view: StudyView, *, epochs: tuple[int, int] | None = None) -> Gantt:
    """The chart of all units, or of those that belong to epochs first … last (from 0)."""
    bars = [bar for bar in view.bars if epochs is None or epochs[0] <= bar.epoch <= epochs[1]]
    if not bars:
        return Gantt((), 0.0, 0.0, ())
    began, ended = min(bar.began_at for bar in bars), max(bar.ended_at for bar in bars)
    breaks = _breaks(bars)
    attended = ended - began - sum(until - since for since, until in breaks)
    rows, gaps = [], []
    for worker in sorted({bar.worker for bar in bars}, key=_natural_order):
        own = sorted(
            (bar for bar in bars if bar.worker == worker), key=lambda bar: (bar.began_at, bar.ended_at)
        )
        busy, until, attempt = 0.0, began, 0
        for bar in own:
            if bar.attempt == attempt and bar.began_at > until:
                gaps.append(bar.began_at - until)
            busy += max(0.0, bar.ended_at - max(until, bar.began_at))
            until, attempt = max(until, bar.ended_at), bar.attempt
        rows.append(GanttRow(worker, tuple(own), busy, attended - busy))
    return Gantt(tuple(rows), began, ended, tuple(sorted(gaps)), breaks)


def _breaks(bars: Sequence[Bar]) -> tuple[tuple[float, float], ...]:
    """Where the clocks of several machines make attempts overlap, there is none."""
    attempts = [
        list(of) for _, of in groupby(sorted(bars, key=lambda bar: bar.attempt), key=lambda bar: bar.attempt)
    ]
    found, since = [], float("-inf")
    for at, of in enumerate(attempts[:-1]):
        since = max(since, *(bar.ended_at for bar in of))
        until = min(bar.began_at for later in attempts[at + 1 :] for bar in later)
        if until > since:
            found.append((since, until))
    return tuple(found)


def as_data(chart: Gantt) -> dict[str, Any]:
    """For programs and the UI: seconds count from the first unit's beginning."""
    return {
        "began_at": chart.began_at,
        "span_s": chart.span_s,
        "idle_share": chart.idle_share,
        "gap_median_s": chart.gap_s(0.5),
        "gap_p99_s": chart.gap_s(0.99),
        "breaks": [
            {"from_s": since - chart.began_at, "to_s": until - chart.began_at}
            for since, until in chart.breaks
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
"""Stands for no trial: a break."""


def timeline_strips(chart: Gantt, columns: int) -> list[list[str | None]]:
    """For each worker, which trial fills most of each of `columns` equal stretches of time; None where it was
    mostly idle, BREAK where there were no workers."""
    if not chart.rows or chart.span_s <= 0 or columns < 1:
        return [[None] * max(0, columns) for _ in chart.rows]
    width = chart.span_s / columns
    absent = [
        sum(part for _, part in cell)
        for cell in _cells(((since, until, BREAK) for since, until in chart.breaks), chart, width, columns)
    ]
    return [
        [
            _dominant_trial(cell, width, away)
            for cell, away in zip(
                _cells(((bar.began_at, bar.ended_at, bar.trial) for bar in row.bars), chart, width, columns),
                absent,
                strict=True,
            )
        ]
        for row in chart.rows
    ]


def _cells(
    stretches: Iterable[tuple[float, float, str]], chart: Gantt, width: float, columns: int
) -> list[list[tuple[str, float]]]:
    """Of what each of the equal cells holds how many seconds."""
    cells: list[list[tuple[str, float]]] = [[] for _ in range(columns)]
    for began, ended, what in stretches:
        first = min(columns - 1, int((began - chart.began_at) / width))
        last = min(columns - 1, int((ended - chart.began_at) / width))
        for at in range(first, last + 1):
            low, high = chart.began_at + at * width, chart.began_at + (at + 1) * width
            part = min(ended, high) - max(began, low)
            if part > 0:
                cells[at].append((what, part))
    return cells


def _dominant_trial(cell: Sequence[tuple[str, float]], width: float, absent: float) -> str | None:
    """absent: for how long there were no workers."""
    filled: dict[str, float] = {}
    for trial, part in cell:
        filled[trial] = filled.get(trial, 0.0) + part
    if absent > width / 2:
        return BREAK
    if sum(filled.values()) < (width - absent) / 2:
        return None
    return max(sorted(filled), key=lambda trial: filled[trial])


def _natural_order(worker: str) -> tuple[int, str]:
    """Workers are mostly numbered: 2 before 10."""
    digits = "".join(ch for ch in worker if ch.isdecimal())
    return (int(digits) if digits else 0, worker)

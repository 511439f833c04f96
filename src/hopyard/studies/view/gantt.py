"""What each worker did when: the data of a Gantt chart, and the idle time in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.studies.view.standing import Bar, StudyView


@dataclass(frozen=True, slots=True)
class Row:
    """One worker. idle_s: between the first unit of the study and its last one's end, without a unit."""

    worker: str
    bars: tuple[Bar, ...]
    busy_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Gantt:
    """began_at, ended_at: unix seconds of the first unit's beginning and the last one's end. gaps_s: every pause between two
    units that followed each other on a worker, sorted."""

    rows: tuple[Row, ...]
    began_at: float
    ended_at: float
    gaps_s: tuple[float, ...]

    @property
    def span_s(self) -> float:
        return self.ended_at - self.began_at

    @property
    def idle_share(self) -> float:
        """Of all workers' time, what was idle; 0 to 1."""
        whole = self.span_s * len(self.rows)
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
    rows, gaps = [], []
    for worker in sorted({bar.worker for bar in bars}, key=_natural):
        own = sorted((bar for bar in bars if bar.worker == worker), key=lambda bar: (bar.began_at, bar.ended_at))
        busy, until = 0.0, began
        for at, bar in enumerate(own):
            if at and bar.began_at > until:
                gaps.append(bar.began_at - until)
            busy += max(0.0, bar.ended_at - max(until, bar.began_at))
            until = max(until, bar.ended_at)
        rows.append(Row(worker, tuple(own), busy, ended - began - busy))
    return Gantt(tuple(rows), began, ended, tuple(sorted(gaps)))


def as_data(chart: Gantt) -> dict[str, Any]:
    """For programs and the UI: seconds count from the first unit's beginning."""
    return {
        "began_at": chart.began_at,
        "span_s": chart.span_s,
        "idle_share": chart.idle_share,
        "gap_median_s": chart.gap_s(0.5),
        "gap_p99_s": chart.gap_s(0.99),
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


def strips(chart: Gantt, columns: int) -> list[list[str | None]]:
    """For each worker, which trial fills most of each of `columns` equal stretches of time; None where it was mostly idle."""
    if not chart.rows or chart.span_s <= 0 or columns < 1:
        return [[None] * max(0, columns) for _ in chart.rows]
    width = chart.span_s / columns
    return [_strip(row.bars, chart.began_at, width, columns) for row in chart.rows]


def _strip(bars: Sequence[Bar], began: float, width: float, columns: int) -> list[str | None]:
    filled: list[dict[str, float]] = [{} for _ in range(columns)]
    for bar in bars:
        first = min(columns - 1, int((bar.began_at - began) / width))
        last = min(columns - 1, int((bar.ended_at - began) / width))
        for at in range(first, last + 1):
            low, high = began + at * width, began + (at + 1) * width
            part = min(bar.ended_at, high) - max(bar.began_at, low)
            if part > 0:
                filled[at][bar.trial] = filled[at].get(bar.trial, 0.0) + part
    return [_fullest(cell, width) for cell in filled]


def _fullest(cell: dict[str, float], width: float) -> str | None:
    if sum(cell.values()) < width / 2:
        return None
    return max(sorted(cell), key=lambda trial: cell[trial])


def _natural(worker: str) -> tuple[int, str]:
    """Workers are mostly numbered: 2 before 10."""
    digits = "".join(ch for ch in worker if ch.isdecimal())
    return (int(digits) if digits else 0, worker)

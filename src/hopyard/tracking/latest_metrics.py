"""Reads metric streams that arrive in pieces: the latest value of each metric, in one pass over the
points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hopyard.domain.metric_extremes import Extremes, StepValue
from hopyard.domain.metric_records import NO_STEP, read_point_blocks, step_after
from hopyard.errors import IntegrityError


class LatestMetrics:
    """Reads the bytes of one metric stream as they arrive.
    A damaged stream is read up to the damage and no further.

    last_steps: by name, the step of the newest point before this stream. Points that were logged without a
    step are numbered on from there, as in `metrics.read_series`.
    """

    def __init__(self, last_steps: Mapping[str, int] | None = None) -> None:
        self._partial_record = b""
        self._names: dict[int, str] = {}
        self._initial_steps = dict(last_steps or {})
        self._last: dict[int, StepValue] = {}  # series -> its newest point
        # series -> step and value of its lowest and of its highest point so far
        self._extremes: dict[int, list[Any]] = {}
        self._fed: dict[int, StepValue] = {}  # the newest points of the newest bytes
        self._unknown = set[int]()  # series with extremes that may be hidden now
        self.is_damaged = False
        self.has_purge = False  # since the caller has set it last
        self.first_step: int | None = None  # of the first point

    def restart(self) -> None:
        """Begins the records of the next process."""
        self._partial_record = b""

    def feed(self, data: bytes, *, hidden: bool = False) -> dict[str, tuple[int, float]]:
        """Returns the newest (step, value) of each metric that has a point in `data`. hidden: a later process
        repeats these points, so only the names are read."""
        if self.is_damaged:
            self._fed = {}
            return {}
        joined = self._partial_record + data if self._partial_record else data
        newest = self._fed = dict[int, StepValue]()
        consumed = 0
        try:
            for part in read_point_blocks(joined, self._names, None if hidden else self._purge):
                if isinstance(part, int):
                    consumed = part
                elif not hidden:
                    self._apply_points(part, newest)
        except IntegrityError:
            self.is_damaged = True
        self._partial_record = b"" if self.is_damaged else bytes(joined[consumed:])
        return {self._names[series]: point for series, point in newest.items() if series in self._names}

    def _purge(self, series: int, _: int) -> None:
        self.has_purge = True  # the newest point stays: the new writer replaces it soon
        self._unknown.add(series)
        self._extremes.pop(series, None)

    def _apply_points(
        self, points: Iterator[tuple[int, int, int, float, float]], newest: dict[int, tuple[int, float]]
    ) -> None:
        last, extremes = self._last, self._extremes
        for _, series, logged_step, _, value in points:
            step = (
                logged_step
                if logged_step != NO_STEP
                else step_after(last[series][0] if series in last else self._last_step(series))
            )
            if self.first_step is None:
                self.first_step = step
            newest[series] = last[series] = (step, value)
            if series in self._unknown:
                continue
            known = extremes.get(series)
            if known is None:
                if value == value:  # not NaN
                    extremes[series] = [step, value, step, value]
            elif value < known[1]:
                known[0], known[1] = step, value
            elif value > known[3]:
                known[2], known[3] = step, value

    def extremes(self) -> dict[str, Extremes]:
        """Returns the lowest and the highest point so far of each metric in the newest result of `feed`."""
        found: dict[str, Extremes] = {}
        for series, point in self._fed.items():
            known = self._extremes.get(series)
            if series in self._names and series not in self._unknown:
                found[self._names[series]] = (
                    (point, point) if known is None else ((known[0], known[1]), (known[2], known[3]))
                )
        return found

    def _last_step(self, series: int) -> int:
        return self._initial_steps.get(self._names.get(series, ""), -1)

    @property
    def last_steps(self) -> dict[str, int]:
        """The step of the newest point in this stream, by name."""
        return {name: step for name, (step, _) in self.latest.items()}

    @property
    def names(self) -> set[str]:
        """The names of the points so far."""
        return {self._names[series] for series in self._last if series in self._names}

    @property
    def latest(self) -> dict[str, StepValue]:
        """The newest point so far, by name."""
        return {self._names[series]: point for series, point in self._last.items() if series in self._names}

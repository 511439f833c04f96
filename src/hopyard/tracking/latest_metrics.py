"""Metric streams that come in pieces: the latest value of each metric, at the price of one look at each
point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hopyard.domain.metric_records import NO_STEP, read_point_blocks, step_after
from hopyard.errors import IntegrityError


class LatestMetrics:
    """Takes the bytes of one metric stream as they come.
    A damaged stream is read up to the damage and no further.

    last_steps: by name, the step of the newest point before this stream; points that are logged without a
    step are counted on from there, as `metrics.read_series` counts them.
    """

    def __init__(self, last_steps: Mapping[str, int] | None = None) -> None:
        self._partial_record = b""
        self._names: dict[int, str] = {}
        self._initial_steps = dict(last_steps or {})
        self._last: dict[int, int] = {}  # series -> step of its newest point
        self.is_damaged = False

    def feed(self, data: bytes) -> dict[str, tuple[int, float]]:
        """The newest (step, value) of each metric that has a point in `data`."""
        if self.is_damaged:
            return {}
        joined = self._partial_record + data if self._partial_record else data
        newest: dict[int, tuple[int, float]] = {}
        used = 0
        try:
            for part in read_point_blocks(joined, self._names):
                if isinstance(part, int):
                    used = part
                else:
                    self._apply_points(part, newest)
        except IntegrityError:
            self.is_damaged = True
        self._partial_record = b"" if self.is_damaged else bytes(joined[used:])
        return {self._names[series]: found for series, found in newest.items() if series in self._names}

    def _apply_points(
        self, points: Iterator[tuple[int, int, int, float, float]], newest: dict[int, tuple[int, float]]
    ) -> None:
        last = self._last
        for _, series, given, _, value in points:
            step = (
                given
                if given != NO_STEP
                else step_after(last[series] if series in last else self._last_step(series))
            )
            last[series] = step
            newest[series] = (step, value)

    def _last_step(self, series: int) -> int:
        return self._initial_steps.get(self._names.get(series, ""), -1)

    @property
    def last_steps(self) -> dict[str, int]:
        """By name, the step of the newest point so far."""
        return self._initial_steps | {
            self._names[series]: step for series, step in self._last.items() if series in self._names
        }

"""Metric streams that come in pieces: the latest value of each metric, at the price of one look at each
point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hopyard.domain.points import NO_STEP, read_stretches
from hopyard.errors import IntegrityError


class PointReader:
    """Takes the bytes of one metric stream as they come.
    A damaged stream is read up to the damage and no further.

    last: by name, the step of the newest point before this stream; points that are logged without a step are
    counted on from there, as `metrics.read_series` counts them.
    """

    def __init__(self, last: Mapping[str, int] | None = None) -> None:
        self._rest = b""
        self._names: dict[int, str] = {}
        self._before = dict(last or {})
        self._last: dict[int, int] = {}  # series -> step of its newest point
        self.damaged = False

    def feed(self, data: bytes) -> dict[str, tuple[int, float]]:
        """The newest (step, value) of each metric that has a point in `data`."""
        if self.damaged:
            return {}
        joined = self._rest + data if self._rest else data
        newest: dict[int, tuple[int, float]] = {}
        used = 0
        try:
            for part in read_stretches(joined, self._names):
                if isinstance(part, int):
                    used = part
                else:
                    self._look(part, newest)
        except IntegrityError:
            self.damaged = True
        self._rest = b"" if self.damaged else bytes(joined[used:])
        return {self._names[series]: found for series, found in newest.items() if series in self._names}

    def _look(
        self, points: Iterator[tuple[int, int, int, float, float]], newest: dict[int, tuple[int, float]]
    ) -> None:
        last = self._last
        for _, series, given, _, value in points:
            step = (
                given
                if given != NO_STEP
                else (last[series] if series in last else self._step_before(series)) + 1
            )
            last[series] = step
            newest[series] = (step, value)

    def _step_before(self, series: int) -> int:
        return self._before.get(self._names.get(series, ""), -1)

    @property
    def last(self) -> dict[str, int]:
        """By name, the step of the newest point so far."""
        return self._before | {
            self._names[series]: step for series, step in self._last.items() if series in self._names
        }

"""Metric streams that come in pieces: the latest value of each metric, at the price of one look at each point."""

from __future__ import annotations

from collections.abc import Iterator

from hopyard.domain.points import NO_STEP, read_stretches
from hopyard.errors import IntegrityError


class PointReader:
    """Takes the bytes of one metric stream as they come. A damaged stream is read up to the damage and no further."""

    def __init__(self) -> None:
        self._rest = b""
        self._names: dict[int, str] = {}
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

    def _look(self, points: Iterator[tuple[int, int, int, float, float]], newest: dict[int, tuple[int, float]]) -> None:
        last = self._last
        for _, series, given, _, value in points:
            step = given if given != NO_STEP else last.get(series, -1) + 1
            last[series] = step
            newest[series] = (step, value)

"""The newest metrics of a replica at a moment, from its local streams."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass, field

from hopyard.domain.metric_records import NO_STEP, Point, Purge, read_records
from hopyard.domain.stream_limits import LOGGED_STREAM, METRIC_STREAMS
from hopyard.errors import IntegrityError
from hopyard.replica.replica_dir import ReplicaDir

_MAX_RECENT = 4096  # points after which older ones count for every later moment
_READ_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class _Stream:
    offset: int = 0
    names: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class MetricHistory:
    """Reads only what was added since the last call."""

    folder: ReplicaDir
    _streams: dict[str, _Stream] = field(default_factory=dict)
    _recent: deque[tuple[str, Point]] = field(default_factory=deque)
    _values: dict[str, float] = field(default_factory=dict)
    _step: int | None = None

    def values_at(self, at: float) -> tuple[int | None, dict[str, float]]:
        """Returns the largest step so far, and the last value of each metric, at this Unix time."""
        logged = self._streams.setdefault(LOGGED_STREAM, _Stream()).names
        for name in METRIC_STREAMS:
            with suppress(OSError, IntegrityError):
                stream = self._streams.setdefault(name, _Stream())
                self._read(name, stream, () if name == LOGGED_STREAM else logged)
        while len(self._recent) > _MAX_RECENT:
            metric, point = self._recent.popleft()
            self._step = _larger(self._step, point.step)
            self._values[metric] = point.value
        step, values = self._step, dict(self._values)
        for metric, point in self._recent:
            if point.time <= at:
                step = _larger(step, point.step)
                values[metric] = point.value
        return step, values

    def _read(self, name: str, stream: _Stream, logged: Container[int]) -> None:
        with os.fdopen(self.folder.open_stream(name), "rb") as file:
            file.seek(stream.offset)
            while data := file.read(_READ_BYTES):
                consumed = 0
                for record in read_records(data, stream.names):
                    if isinstance(record, int):
                        consumed = record
                    elif isinstance(record, Purge):
                        continue  # newer points follow
                    elif record.series in stream.names and record.series not in logged:
                        self._recent.append((stream.names[record.series], record))
                if not consumed:
                    return
                stream.offset += consumed
                file.seek(stream.offset)


def _larger(step: int | None, other: int) -> int | None:
    if other == NO_STEP:
        return step
    return other if step is None else max(step, other)

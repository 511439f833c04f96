"""Writes the metrics of a run as event files of TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_FLUSH_S = 3600  # it is flushed after each reading


class MetricEvents:
    """The event file of one run, to which new points are appended. folder: of the file."""

    def __init__(self, folder: Path) -> None:
        self._writer = EventFileWriter(str(folder), flush_secs=_FLUSH_S)
        self._steps: dict[str, list[int]] = {}

    def append(self, series: Iterator[tuple[str, api.SeriesOut]]) -> None:
        """Writes the points that were not written yet. Where points were withdrawn, since the run began again
        from a checkpoint, TensorBoard drops them, too."""
        for name, columns in series:
            steps, written = columns["steps"], self._steps.get(name, [])
            first = len(written)
            if steps[:first] != written:
                first = next(
                    (i for i, (old, new) in enumerate(zip(written, steps, strict=False)) if old != new),
                    min(len(written), len(steps)),
                )
                if first < len(written):
                    self._withdraw(min(written[first:]))
            self._write(name, columns, range(first, len(steps)))
            self._steps[name] = list(steps)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, name: str, columns: api.SeriesOut, indices: Sequence[int]) -> None:
        for i in indices:
            value = Summary.Value(tag=name, simple_value=float(columns["values"][i]))
            self._writer.add_event(
                Event(
                    step=columns["steps"][i],
                    wall_time=columns["times"][i] or 0.0,
                    summary=Summary(value=[value]),
                )
            )

    def _withdraw(self, step: int) -> None:
        log = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(step=step, wall_time=time.time(), session_log=log))

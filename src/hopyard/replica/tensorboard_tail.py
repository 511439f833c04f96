"""Converts TensorBoard event files that a script writes to points of the `tensorboard` stream."""

from __future__ import annotations

from pathlib import Path

from hopyard.domain.metric_records import POINT, pack_definition, pack_point, series_id
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.tfevents import EventFiles

POLL_INTERVAL_S = 1.0
_MAX_NAME_LENGTH = 1024


class TensorBoardTail:
    """Follows all event files below the run's folder and below `logs`, the folder where the run
    writes them."""

    def __init__(self, folder: ReplicaDir, logs: str | None = None) -> None:
        self._folder = folder
        roots = [folder.work]
        if logs and not Path(folder.work, logs).resolve().is_relative_to(folder.work.resolve()):
            roots.append(Path(folder.work, logs))
        self._files = [EventFiles(root) for root in roots]
        self._defined_series: set[str] = set()

    def poll(self) -> float:
        """Appends new points to the stream; returns in how many seconds to poll again."""
        records: list[bytes] = []
        for files in self._files:
            for name, step, wall_time, value in files.poll():
                series = name.encode(errors="replace")[:_MAX_NAME_LENGTH].decode(errors="ignore")
                if not series:
                    continue
                if series not in self._defined_series:
                    self._defined_series.add(series)
                    records.append(pack_definition(series))
                records.append(pack_point(POINT, series_id(series), step, wall_time, value))
        if records:
            self._folder.append("tensorboard", b"".join(records))
        return POLL_INTERVAL_S

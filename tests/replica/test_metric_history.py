"""Tests the metrics of a moment, from the streams of a replica."""

from __future__ import annotations

from pathlib import Path

from hopyard.domain.metric_records import POINT, pack_definition, pack_point, series_id
from hopyard.replica.metric_history import MetricHistory
from hopyard.replica.replica_dir import ReplicaDir


def test_logged_values_come_before_those_of_event_files(tmp_path: Path) -> None:
    def append(stream: str, name: str, step: int, value: float) -> None:
        record = pack_definition(name) + pack_point(POINT, series_id(name), step, float(step), value)
        with (tmp_path / "streams" / stream).open("ab") as file:
            file.write(record)

    (tmp_path / "streams").mkdir()
    history = MetricHistory(ReplicaDir(tmp_path))
    append("metrics", "loss", 1, 0.5)
    append("tensorboard", "loss", 2, 9.0)
    append("tensorboard", "lr", 2, 0.1)
    assert history.values_at(5.0) == (2, {"loss": 0.5, "lr": 0.1})
    append("metrics", "loss", 4, 0.25)
    assert history.values_at(3.0) == (2, {"loss": 0.5, "lr": 0.1})
    assert history.values_at(5.0) == (4, {"loss": 0.25, "lr": 0.1})

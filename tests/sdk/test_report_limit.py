"""Reports beyond the limit of a run: the head and the newest later values are retained, whatever the script
writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hopyard.domain.metric_records import (
    NO_STEP,
    POINT,
    Point,
    pack_definition,
    pack_point,
    read_records,
    series_id,
)
from hopyard.sdk.report_limit import ReportLimit

MIB = 1024 * 1024


class Stream:
    """A file of the script, and the server's copy of it."""

    def __init__(self, folder: Path, name: str, limit_bytes: int = MIB) -> None:
        self.name, self.path, self.folder = name, folder / name, folder / "reports"
        self.path.touch()
        self.descriptor = os.open(self.path, os.O_RDONLY)
        self.limit, self.server, self.now = ReportLimit(limit_bytes, self.folder), b"", 0.0

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def ship(self, *, ended: bool = False, piece: int = MIB) -> bytes:
        """Returns the data on the server after everything was shipped. Streams within their limit are tested
        with the shipper."""
        self.now += 10.0
        size = self.path.stat().st_size
        assert self.limit.applies(self.name, size)
        length = self.limit.update(
            self.name,
            str(self.path),
            self.descriptor,
            size,
            acknowledged=len(self.server),
            now=self.now,
            ended=ended,
        )
        while len(self.server) < length:
            self.server += self.limit.read(
                self.name, self.descriptor, len(self.server), min(piece, length - len(self.server))
            )
        assert len(self.server) == length
        return self.server


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Callable[[str], Stream]]:
    opened: list[Stream] = []

    def opens(name: str) -> Stream:
        opened.append(Stream(tmp_path, name))
        return opened[-1]

    yield opens
    for connection in opened:
        os.close(connection.descriptor)


def points(data: bytes) -> dict[str, list[Point]]:
    names: dict[int, str] = {}
    *found, used = read_records(data, names)
    assert used == len(data), "whole records only"
    by_name: dict[str, list[Point]] = {}
    for point in found:
        assert isinstance(point, Point)
        by_name.setdefault(names[point.series], []).append(point)
    return by_name


def packed_points(name: str, steps: range) -> bytes:
    return b"".join(pack_point(POINT, series_id(name), step, 1.0, step / 2) for step in steps)


def test_metrics_beyond_limit_keep_first_and_newest_values(
    stream: Callable[[str], Stream],
) -> None:
    metrics = stream("metrics")
    metrics.write(pack_definition("loss") + packed_points("loss", range(60_000)))
    metrics.ship()
    metrics.write(
        pack_definition("late")
        + packed_points("late", range(5))
        + packed_points("loss", range(60_000, 200_000))
    )
    live = metrics.ship()
    metrics.write(packed_points("loss", range(200_000, 200_010)))
    data = metrics.ship(ended=True)
    result = points(data)
    head = [point.step for point in result["loss"] if point.step < 31_775]
    assert head == list(range(len(head))), "the beginning is whole"
    assert MIB - 33 < len(head) * 33 + 15 <= MIB
    assert [result[name][-1].step for name in ("loss", "late")] == [200_009, 4]
    assert points(live)["loss"][-1].step == 199_999, "the newest values are there while it runs"
    assert len(data) < MIB + 1000


def test_file_that_has_just_passed_its_limit_is_not_read_as_it_is(stream: Callable[[str], Stream]) -> None:
    metrics = stream("metrics")
    metrics.write(pack_definition("loss") + packed_points("loss", range(30_000)))
    metrics.server = metrics.limit.read("metrics", metrics.descriptor, 0, 100_000)
    assert len(metrics.server) == 100_000
    metrics.write(packed_points("loss", range(30_000, 60_000)))
    assert metrics.limit.read("metrics", metrics.descriptor, 100_000, 4 * MIB) == b"", "before it is limited"
    result = points(metrics.ship(ended=True))["loss"]
    assert [point.step for point in result[-1:]] == [59_999] and len(metrics.server) < MIB + 1000


def test_part_below_limit_is_sent_without_space_for_newest_values(stream: Callable[[str], Stream]) -> None:
    metrics = stream("metrics")
    metrics.write(pack_definition("loss") + packed_points("loss", range(60_000)))
    metrics.folder.touch()  # no summary file can be created in it
    with pytest.raises(FileExistsError):
        metrics.ship()
    size = metrics.limit.readable_bytes("metrics", metrics.descriptor)
    assert MIB - 33 < size <= MIB
    while data := metrics.limit.read("metrics", metrics.descriptor, len(metrics.server), 100_000):
        metrics.server += data
    assert len(metrics.server) == size
    assert [point.step for point in points(metrics.server)["loss"]] == list(range(size // 33))
    metrics.folder.unlink()
    result = points(metrics.ship(ended=True))["loss"]
    assert [point.step for point in result[-2:]] == [size // 33 - 1, 59_999]


def test_steps_are_counted_across_omitted_points(stream: Callable[[str], Stream]) -> None:
    metrics = stream("metrics")
    metrics.write(pack_definition("loss") + pack_point(POINT, series_id("loss"), NO_STEP, 1.0, 2.0) * 50_000)
    assert points(metrics.ship(ended=True))["loss"][-1].step == 49_999


def test_metrics_of_any_length_and_names_are_bounded(stream: Callable[[str], Stream]) -> None:
    metrics, events = stream("metrics"), stream("events")
    for turn in range(12):
        names = [f"{'n' * 900}/{turn}/{number}" for number in range(1000)]
        metrics.write(b"".join(pack_definition(name) + packed_points(name, range(3)) for name in names))
        events.write(
            b"".join(
                json.dumps({"kind": f"{turn}/{number}", "text": "x" * 1000}).encode() + b"\n"
                for number in range(1000)
            )
        )
        if metrics.path.stat().st_size > MIB:
            metrics.ship()
            events.ship()
    assert max(len(metrics.ship(ended=True)), len(events.ship(ended=True))) <= MIB * 5 // 4
    points(metrics.server)


def test_omitted_metrics_take_no_space_on_node(stream: Callable[[str], Stream]) -> None:
    metrics = stream("metrics")
    metrics.write(pack_definition("loss"))
    for turn in range(8):
        metrics.write(packed_points("loss", range(turn * 100_000, turn * 100_000 + 100_000)))
        metrics.ship()
    assert metrics.path.stat().st_blocks * 512 < 5 * MIB < metrics.path.stat().st_size
    assert points(metrics.ship(ended=True))["loss"][-1].step == 799_999


def test_events_beyond_limit_are_grouped_by_kind(stream: Callable[[str], Stream]) -> None:
    events = stream("events")

    def tell(**fields: object) -> bytes:
        return json.dumps(fields).encode() + b"\n"

    events.write(b"".join(tell(kind="progress", done=n) for n in range(60_000)))
    events.write(
        tell(kind="summary", values={"acc": 1, "loss": 2})
        + tell(kind="unstored", text="a")
        + tell(kind="unstored", text="b")
    )
    events.write(b"".join(tell(kind="summary", values={"acc": n}) for n in range(10_000)) + b'{"kind": "half')
    lines = [json.loads(line) for line in events.ship(ended=True).splitlines()]
    assert {line["kind"]: line.get("values") for line in lines[-4:]} == {
        "unstored": None,
        "progress": None,
        "summary": {"acc": 9999, "loss": 2},
    }
    assert [line.get("text") for line in lines if line["kind"] == "unstored"] == ["a", "b"]
    assert [line["done"] for line in lines if line["kind"] == "progress"][-1] == 59_999


def test_damaged_stream_is_bounded(stream: Callable[[str], Stream]) -> None:
    metrics = stream("metrics")
    metrics.write(pack_definition("loss") + packed_points("loss", range(10)) + os.urandom(3 * MIB))
    assert len(metrics.ship(ended=True)) <= MIB * 5 // 4


def test_new_replica_continues_shipped_stream(stream: Callable[[str], Stream]) -> None:
    metrics = stream("metrics")
    metrics.write(pack_definition("loss") + packed_points("loss", range(100_000)))
    before = metrics.ship()
    metrics.limit, metrics.server = ReportLimit(MIB, metrics.folder), b""
    assert metrics.ship(ended=True) == before


def test_rollback_offset_on_server_precedes_later_points(
    stream: Callable[[str], Stream],
) -> None:
    metrics = stream("metrics")
    metrics.write(pack_definition("loss") + packed_points("loss", range(40_000)))
    saved, done = [], 40_000
    for count in (1, 500, 3, 20_000, 1, 7):
        metrics.ship(piece=100_000)
        metrics.write(packed_points("loss", range(done, done + count)))
        done += count
        saved.append((done, metrics.path.stat().st_size))
    metrics.ship(ended=True)
    for step, offset in saved:
        visible = metrics.server[: metrics.limit.server_offset("metrics", offset)]
        assert points(visible)["loss"][-1].step < step
    assert points(visible)["loss"][-1].step >= done - 20_020, (
        "and no more is hidden than came since the last value"
    )

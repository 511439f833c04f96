"""Reading metrics takes memory for the returned points, and little for skipped points."""

from __future__ import annotations

import asyncio
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopyard.domain.ids import AttemptId, RunId, RunName
from hopyard.domain.metric_records import NO_STEP, POINT, pack_definition, pack_point, pack_purge, series_id
from hopyard.domain.run import RoleSpec, Run, RunPhase, RunSpec
from hopyard.interfaces.streams import Segment
from hopyard.stores.stream_files import FolderStreams
from hopyard.tracking.metrics import Series, read_series
from hopyard.tracking.rollback import VisibleStreams
from hopyard.tracking.run_history import RunHistory

ATTEMPT = AttemptId("r.1")
RUN = Run(
    RunId("r"),
    RunName("a", "p", 1),
    RunSpec("p", (RoleSpec(("x",)),)),
    RunPhase.SUCCEEDED,
    datetime(2026, 1, 1, tzinfo=UTC),
)
LOSS = series_id("loss")


async def read(folder: Path, points: bytes) -> tuple[Series, int]:
    """Returns the downsampled curve and the peak memory of reading it."""
    streams = FolderStreams(folder)
    await streams.append(ATTEMPT, 0, [Segment("metrics", 0, pack_definition("loss") + points)])
    tracemalloc.start()
    try:
        result = await read_series(streams, RunHistory(RUN, VisibleStreams((ATTEMPT,), {})), max_points=1000)
        return result["loss"], tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        await streams.close()


def test_long_curve_is_read_in_bounded_memory(tmp_path: Path) -> None:
    count = 600_000
    series, peak = asyncio.run(
        read(tmp_path, b"".join(pack_point(POINT, LOSS, n, 1.0, float(n)) for n in range(count)))
    )
    assert (series.count, series.steps[-1], len(series.steps) <= 1000) == (count, count - 1, True)
    assert peak < 64 * count


def test_steps_are_counted_up_to_maximum(tmp_path: Path) -> None:
    points = pack_point(POINT, LOSS, 2**63 - 1, 1.0, 1.0) + pack_point(POINT, LOSS, NO_STEP, 1.0, 2.0)
    series, _ = asyncio.run(read(tmp_path, points))
    assert list(series.steps) == [2**63 - 1] * 2


def test_script_that_resumes_from_its_own_checkpoint_continues_its_curve(tmp_path: Path) -> None:
    attempts = tuple(AttemptId(f"r.{number}") for number in (1, 2, 3))
    curves = ([(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3)], [(2, 1.2), (3, 1.3), (4, 1.4)], [(4, 2.4)])

    async def scenario() -> list[tuple[int, float]]:
        streams = FolderStreams(tmp_path)
        for attempt, points in zip(attempts, curves, strict=True):
            data = b"".join(pack_point(POINT, LOSS, step, 1.0, value) for step, value in points)
            await streams.append(attempt, 0, [Segment("metrics", 0, pack_definition("loss") + data)])
        view = VisibleStreams(attempts[2:], {}, attempts, restarted_attempts=attempts[:2])
        series = (await read_series(streams, RunHistory(RUN, view)))["loss"]
        await streams.close()
        return list(zip(series.steps, series.values, strict=True))

    assert asyncio.run(scenario()) == [(0, 0.0), (1, 0.1), (2, 1.2), (3, 1.3), (4, 2.4)]


def test_attempt_without_points_hides_none_and_other_metrics_end_at_its_first_step(tmp_path: Path) -> None:
    acc = series_id("acc")
    first = pack_definition("loss") + pack_definition("acc")
    for step in range(4):
        first += pack_point(POINT, LOSS, step, 1.0, 0.5) + pack_point(POINT, acc, step, 1.0, 0.5)
    second = pack_definition("loss") + pack_point(POINT, LOSS, 2, 1.0, 0.25)

    async def scenario(second: bytes, **options: Any) -> dict[str, list[int]]:
        streams = FolderStreams(tmp_path / str(len(second)))
        attempts = tuple(AttemptId(f"r.{number}") for number in (1, 2))
        for attempt, data in zip(attempts, (first, second), strict=True):
            await streams.append(attempt, 0, [Segment("metrics", 0, data)])
        view = VisibleStreams(attempts[1:], {}, attempts, restarted_attempts=attempts[:1])
        found = await read_series(streams, RunHistory(RUN, view), **options)
        await streams.close()
        return {name: list(series.steps) for name, series in found.items()}

    assert asyncio.run(scenario(b"")) == {"acc": [0, 1, 2, 3], "loss": [0, 1, 2, 3]}
    assert asyncio.run(scenario(second)) == {"acc": [0, 1], "loss": [0, 1, 2]}
    assert asyncio.run(scenario(second, names=["acc"])) == {"acc": [0, 1]}
    assert asyncio.run(scenario(second, limit=1)) == {"acc": [0, 1]}


def test_event_files_add_no_second_curve_of_a_logged_name(tmp_path: Path) -> None:
    def curves(value: float, *names: str) -> bytes:
        points = (pack_point(POINT, series_id(name), step, 1.0, value) for name in names for step in (0, 1))
        return b"".join(map(pack_definition, names)) + b"".join(points)

    async def scenario(**options: Any) -> dict[str, list[tuple[int, float]]]:
        streams = FolderStreams(tmp_path / str(options))
        attempts = tuple(AttemptId(f"r.{number}") for number in (1, 2))
        first = [
            Segment("tensorboard", 0, curves(0.5, "loss", "lr")),
            Segment("metrics", 0, curves(1.5, "loss")),
        ]
        await streams.append(attempts[0], 0, first)
        # this attempt does not log with `hop.log`
        await streams.append(attempts[1], 0, [Segment("tensorboard", 0, curves(2.5, "loss"))])
        found = await read_series(streams, RunHistory(RUN, VisibleStreams(attempts, {})), **options)
        await streams.close()
        return {name: list(zip(each.steps, each.values, strict=True)) for name, each in found.items()}

    loss = [(0, 1.5), (1, 1.5), (0, 2.5), (1, 2.5)]
    assert asyncio.run(scenario()) == {"loss": loss, "lr": [(0, 0.5), (1, 0.5)]}
    assert asyncio.run(scenario(names=["loss"])) == asyncio.run(scenario(limit=1)) == {"loss": loss}


def test_purge_hides_later_points(tmp_path: Path) -> None:
    async def scenario() -> list[tuple[int, float]]:
        streams = FolderStreams(tmp_path)
        data = pack_definition("loss")
        for value, steps in ((0.5, range(4)), (1.5, range(2, 5))):
            data += pack_purge(LOSS, steps[0]) if value > 1 else b""
            data += b"".join(pack_point(POINT, LOSS, step, 1.0, value) for step in steps)
        await streams.append(ATTEMPT, 0, [Segment("tensorboard", 0, data)])
        series = (await read_series(streams, RunHistory(RUN, VisibleStreams((ATTEMPT,), {}))))["loss"]
        await streams.close()
        return list(zip(series.steps, series.values, strict=True))

    assert asyncio.run(scenario()) == [(0, 0.5), (1, 0.5), (2, 1.5), (3, 1.5), (4, 1.5)]


def test_names_may_be_patterns(tmp_path: Path) -> None:
    names = ("a/x", "a/y", "b*c", "bbc")

    async def scenario(*selected: str, limit: int | None = None) -> list[str]:
        streams = FolderStreams(tmp_path)
        data = b"".join(
            pack_definition(name) + pack_point(POINT, series_id(name), 1, 1.0, 0.5) for name in names
        )
        await streams.append(ATTEMPT, 0, [Segment("metrics", 0, data)])
        view = RunHistory(RUN, VisibleStreams((ATTEMPT,), {}))
        series = await read_series(streams, view, names=selected, limit=limit)
        await streams.close()
        return list(series)

    assert asyncio.run(scenario("a/*")) == ["a/x", "a/y"]
    assert asyncio.run(scenario("*y", "bbc")) == ["a/y", "bbc"]
    assert asyncio.run(scenario("b*c")) == ["b*c", "bbc"]
    assert asyncio.run(scenario("*", limit=2)) == ["a/x", "a/y"]
    assert asyncio.run(scenario("a.x")) == []

"""Parts of a stream that a later process of the same attempt repeats are hidden."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from hopyard.domain.ids import AttemptId
from hopyard.domain.metric_records import POINT, pack_definition, pack_point, series_id
from hopyard.domain.restart_policy import RestartMode, RestartPolicy
from hopyard.domain.run import RoleSpec, RunSpec
from hopyard.interfaces.streams import Segment
from hopyard.stores.stream_files import FolderStreams
from hopyard.tracking.metrics import read_series
from hopyard.tracking.process_restarts import with_restarts
from hopyard.tracking.rollback import RestartRange, VisibleStreams
from hopyard.tracking.run_history import RunHistory
from tests.tracking.test_metrics import RUN

A = AttemptId("r.1")
SPEC = RunSpec(
    "p",
    (RoleSpec(("x",), "lead"), RoleSpec(("y",), "worker", restart=RestartPolicy(RestartMode.ALWAYS))),
)
LOSS = series_id("loss")


def point(step: int, value: float) -> bytes:
    return pack_point(POINT, LOSS, step, 1.0, value)


def visible_view(*cuts: RestartRange, limit: int | None = None) -> VisibleStreams:
    key = (A, 0, "metrics")
    return VisibleStreams((A,), {} if limit is None else {key: limit}, (A,), restarts={key: cuts})


def test_repeated_parts_are_hidden() -> None:
    view = visible_view(RestartRange(10, 20), RestartRange(35, 35))
    spans = [
        (span.begin, span.end, span.is_hidden, span.is_restart) for span in view.spans_of(A, 0, "metrics")
    ]
    assert spans == [
        (0, 10, False, False),
        (10, 20, True, False),
        (20, 35, False, True),
        (35, None, False, True),
    ]
    assert list(view.visible_parts(A, 0, "metrics", 5, 40)) == [(5, 10), (20, 35), (35, 40)]
    assert list(view.visible_parts(A, 1, "metrics", 5, 40)) == [(5, 40)]


def test_restarts_after_the_end_of_the_visible_part_change_nothing() -> None:
    view = visible_view(RestartRange(10, 20), RestartRange(30, 50), limit=25)
    assert list(view.visible_parts(A, 0, "metrics", 0, 100)) == [(0, 10), (20, 25)]


def test_restarts_are_read_from_events_of_roles_with_a_policy(tmp_path: Path) -> None:
    first = {"kind": "restarted", "ends": {"stdout": 30, "stderr": 4}, "begins": {"stdout": 20}}
    second = {"kind": "restarted", "ends": {"stdout": 50, "odd": "x"}, "begins": {"stdout": 20}}
    data = b"".join(json.dumps(event).encode() + b"\n" for event in (first, second, {"kind": "note"}))

    async def read() -> VisibleStreams:
        streams = FolderStreams(tmp_path)
        for rank in (0, 1):
            await streams.append(A, rank, [Segment("events", 0, data)])
        view = await with_restarts(streams, VisibleStreams((A,), {}, (A,)), SPEC)
        await streams.close()
        return view

    # the second process died before a newer checkpoint: the third one repeats all of it
    assert asyncio.run(read()).restarts == {
        (A, 1, "stdout"): (RestartRange(20, 50),),
        (A, 1, "stderr"): (RestartRange(4, 4),),
    }


def test_restarts_of_an_elastic_gang_are_found_at_the_ranks_of_fewer_replicas(tmp_path: Path) -> None:
    event = {"kind": "restarted", "ends": {"stdout": 30}}
    elastic = replace(SPEC, roles=(replace(SPEC.roles[0], replicas=4, min_replicas=2), SPEC.roles[1]))

    async def read() -> VisibleStreams:
        streams = FolderStreams(tmp_path)
        await streams.append(A, 2, [Segment("events", 0, json.dumps(event).encode() + b"\n")])
        view = await with_restarts(streams, VisibleStreams((A,), {}, (A,)), elastic)
        await streams.close()
        return view

    assert asyncio.run(read()).restarts == {(A, 2, "stdout"): (RestartRange(30, 30),)}


def test_points_of_the_next_process_replace_repeated_ones(tmp_path: Path) -> None:
    names = pack_definition("loss")
    kept, lost = names + point(0, 1.0) + point(1, 2.0), point(2, 99.0)
    own = names + point(1, 3.0) + point(2, 4.0)  # of a script that resumed by itself

    async def read() -> list[tuple[int, float]]:
        streams = FolderStreams(tmp_path)
        await streams.append(A, 0, [Segment("metrics", 0, kept + lost + own)])
        begin, end = len(kept), len(kept + lost)
        view = visible_view(RestartRange(begin, end))
        series = (await read_series(streams, RunHistory(RUN, view)))["loss"]
        await streams.close()
        return list(zip(series.steps, series.values, strict=True))

    assert asyncio.run(read()) == [(0, 1.0), (1, 3.0), (2, 4.0)]

"""Readers of chunks return the same as readers of the complete bytes, for any bytes."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.dataset import Dataset
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.metric_extremes import Extremes
from hopyard.domain.metric_records import (
    NO_STEP,
    POINT,
    pack_definition,
    pack_point,
    pack_purge,
    read_point_blocks,
    read_records,
    series_id,
)
from hopyard.domain.run import DatasetRef
from hopyard.errors import IntegrityError
from hopyard.interfaces.run_store import RunSummary
from hopyard.interfaces.streams import Segment, StreamKey
from hopyard.stores.memory.cluster import MemoryClusterStore
from hopyard.stores.memory.commands import MemoryCommandStore
from hopyard.stores.memory.notifications import MemoryNotificationStore
from hopyard.stores.memory.queues import MemoryQueueStore, MemoryReservationStore
from hopyard.stores.memory.runs import MemoryRunStore
from hopyard.stores.memory.state import MemoryState
from hopyard.stores.memory.usage import MemoryUsageStore
from hopyard.stores.stream_files import FolderStreams
from hopyard.testing.stores import START, ClusterStores, new_run, started_run
from hopyard.tracking.best_values import BestValues
from hopyard.tracking.ingest import StreamIngest
from hopyard.tracking.json_lines import LINE_LIMIT, LineReader
from hopyard.tracking.latest_metrics import LatestMetrics
from hopyard.tracking.leaderboard import (
    Leaderboard,
    LeaderboardResult,
    ValueSource,
    most_used_metric,
    rank_runs,
)
from hopyard.tracking.live_run import LiveRun
from hopyard.tracking.logs import StreamRange, last_lines, read_ranges
from hopyard.tracking.run_subscriptions import RunSubscriptions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
records = st.lists(
    st.one_of(
        st.sampled_from(["loss", "acc", "ü"]).map(pack_definition),
        st.builds(
            lambda name, step, value: pack_point(POINT, series_id(name), step, 1.0, value),
            st.sampled_from(["loss", "acc", "ü", "never-defined"]),
            st.one_of(st.integers(-5, 5), st.just(NO_STEP)),
            st.floats(allow_nan=False),
        ),
    ),
    max_size=30,
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(records.map(b"".join), st.binary(max_size=3))
def test_chunked_reads_equal_all_records(data: bytes, tail_: bytes) -> None:
    def slow() -> object:
        names: dict[int, str] = {}
        try:
            return [p if isinstance(p, int) else tuple(p) for p in read_records(data + tail_, names)], names
        except IntegrityError:
            return "damaged"

    def fast() -> object:
        names: dict[int, str] = {}
        points: list[object] = []
        try:
            for part in read_point_blocks(data + tail_, names):
                points += [part] if isinstance(part, int) else [point[1:] for point in part]
        except IntegrityError:
            return "damaged"
        return points, names

    assert fast() == slow()


@given(records.map(b"".join), st.lists(st.integers(0, 2000), max_size=6))
def test_points_in_chunks_equal_all_points(data: bytes, cuts: list[int]) -> None:
    complete, parts = LatestMetrics(), LatestMetrics()
    expected = complete.feed(data)
    latest: dict[str, tuple[int, float]] = {}
    for piece in pieces(data, cuts):
        latest.update(parts.feed(piece))
    # A name that is defined after its first points counts from then on: cut pieces may miss what the whole
    # sees.
    assert {name: latest[name] for name in latest} == {name: expected[name] for name in latest}
    assert not parts.is_damaged


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_any_bytes_are_read_without_error(data: bytes, cuts: list[int]) -> None:
    points, lines, live = LatestMetrics(), LineReader(), LiveRun(RunId("x"))
    for piece in pieces(data, cuts):
        points.feed(piece)
        for line in lines.feed(piece):
            live.apply_event(0, line)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["kind", "t", "values", "done", "total", "unit"]), json_values),
    st.sampled_from(["params", "summary", "progress", "checkpoint"]),
)
def test_any_event_is_read_without_error(event: dict[str, object], kind: str) -> None:
    live = LiveRun(RunId("x"))
    live.apply_event(0, {**event, "kind": kind})
    live.apply_event(0, event)
    assert live.progress is None or math.isfinite(live.progress.done)
    assert math.isfinite(live.last_at)


def test_time_limit_notices_of_run_are_bounded() -> None:
    """Each becomes an event of the run, in the database."""
    live = LiveRun(RunId("r"))
    accepted = [
        live.apply_event(0, {"t": float(n), "kind": "time-limit", "text": str(n)}) for n in range(100)
    ]
    assert 0 < accepted.count(True) < 100


def test_partial_and_endless_lines_are_read() -> None:
    reader = LineReader()
    assert list(reader.feed(b'{"a": 1}\n{"a"')) == [{"a": 1}]
    assert list(reader.feed(b": 2}\n\n")) == [{"a": 2}]
    for _ in range(3):
        assert list(reader.feed(b"x" * LINE_LIMIT)) == []
    assert list(reader.feed(b'\n{"a": 3}\n')) == [{"a": 3}]
    assert reader.skipped_lines == 1


def test_halves_of_characters_are_replaced() -> None:
    """No database can hold one: a tag with the name of a file would keep all later values from the store."""
    lines = [
        json.dumps({"file": "a\udcff", "b\ud800": ["ü😀\udc00"], "n": math.inf}).encode(),
        b'{"raw": "a\xed\xb3\xbf", "whole": "\xed\x95\x9c"}',
    ]
    assert list(LineReader().feed(b"\n".join([*lines, b""]))) == [
        {"file": "a?", "b?": ["ü😀?"], "n": math.inf},
        {"raw": "a?", "whole": "한"},
    ]


def test_metric_is_taken_from_lowest_rank() -> None:
    live, readers = LiveRun(RunId("x")), {0: LatestMetrics(), 2: LatestMetrics()}

    def apply(rank: int, *points: tuple[str, int, float]) -> bool:
        data = b"".join(
            pack_definition(name) + pack_point(POINT, series_id(name), step, 1.0, value)
            for name, step, value in points
        )
        return live.apply_points(rank, readers[rank], data)

    assert apply(2, ("loss", 1, 2.0), ("own", 1, 1.0))
    assert apply(0, ("loss", 1, 1.0))
    assert not apply(2, ("loss", 2, 9.0))
    assert live.latest == {"loss": (1, 1.0), "own": (1, 1.0)}


def test_extremes_are_those_of_the_visible_curve() -> None:
    async def scene(folder: Path) -> None:
        state, streams = MemoryState(), FolderStreams(folder)
        stores = ClusterStores(
            MemoryRunStore(state),
            MemoryClusterStore(state),
            MemoryQueueStore(state),
            MemoryReservationStore(state),
            MemoryUsageStore(state),
            MemoryCommandStore(state),
            MemoryNotificationStore(state),
        )
        run, attempt = await started_run(stores, replicas=2, datasets=(DatasetRef("d", 1),))
        ingest = StreamIngest(stores.runs, streams, RunSubscriptions())
        best = BestValues(stores.runs, streams)

        async def log(attempt: AttemptId, rank: int, stream: str, *values: float) -> None:
            points = (pack_point(POINT, series_id("a"), NO_STEP, 1.0, value) for value in values)
            data = pack_definition("a") + b"".join(points)
            offset = (await ingest.append(attempt, rank, [])).get(stream, 0)
            for piece in pieces(data, [len(data) // 2]):
                lengths = await ingest.append(attempt, rank, [Segment(stream, offset, piece)])
                offset = lengths.get(stream, 0)
            await ingest.flush(attempt, rank)

        async def known() -> tuple[Mapping[str, Extremes], list[float]]:
            [summary] = await stores.runs.list_summaries("d", limit=1, latest=True, extremes=True)
            values = [await best.results([summary], "a", higher=higher) for higher in (False, True)]
            return summary.extremes, [result[run].value for result in values]

        await log(attempt, 1, "metrics", -9.0, 9.0)
        assert await known() == ({"a": ((0, -9.0), (1, 9.0))}, [-9.0, 9.0])
        await log(attempt, 0, "tensorboard", 3.0, 0.5)  # another curve of the same name: `hop.log` counts
        assert await known() == ({"a": ((1, 0.5), (0, 3.0))}, [0.5, 3.0])
        await log(attempt, 0, "metrics", math.nan, 2.0, 1.0, 1.0)
        assert await known() == ({"a": ((2, 1.0), (1, 2.0))}, [1.0, 2.0])
        await log(attempt, 0, "tensorboard", 0.25)
        assert await known() == ({"a": ((2, 1.0), (1, 2.0))}, [1.0, 2.0])
        # the server restarts; rank 0 has ended, and does not connect again
        ingest = StreamIngest(stores.runs, streams, RunSubscriptions())
        await log(attempt, 1, "metrics", -12.0, 12.0)
        assert await known() == ({"a": ((2, 1.0), (1, 2.0))}, [1.0, 2.0])
        assert (await stores.runs.latest_metrics([run]))[run] == {"a": (3, 1.0)}
        # another curve, of which the lowest point is replaced
        curve = [pack_point(POINT, series_id("b"), step, 1.0, value) for step, value in ((0, 2.0), (1, 0.0))]
        later = pack_purge(series_id("b"), 1), pack_point(POINT, series_id("b"), 1, 1.0, 1.0)
        for records in ((pack_definition("b"), *curve), later):
            offset = (await ingest.append(attempt, 0, [])).get("tensorboard", 0)
            await ingest.append(attempt, 0, [Segment("tensorboard", offset, b"".join(records))])
            await ingest.flush(attempt, 0)
        assert (await stores.runs.latest_metrics([run]))[run] == {"a": (3, 1.0), "b": (1, 1.0)}
        [summary] = await stores.runs.list_summaries("d", limit=1, latest=True, extremes=True)
        assert (await best.results([summary], "b", higher=False))[run].value == 1.0
        assert (await best.results([summary], "a", higher=True))[run].value == 2.0
        await streams.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scene(Path(folder)))


def test_metrics_of_an_earlier_attempt_stay_until_the_first_step_of_the_next() -> None:
    async def stored(live: LiveRun, store: MemoryRunStore) -> dict[str, tuple[int, float]]:
        await live.write(store)
        return dict((await store.latest_metrics([live.run]))[live.run])

    async def scene() -> None:
        runs = MemoryRunStore(MemoryState())
        run = (await runs.create([new_run()], now=START))[0].id
        earlier = {"loss": (9, 0.5), "acc": (4, 0.1), "late": (8, 1.0)}
        await runs.record_metrics(run, earlier)
        live = LiveRun(run, replace_metrics=True, earlier=earlier)
        assert not live.is_dirty and await stored(live, runs) == earlier
        points = [pack_point(POINT, series_id("loss"), step, 1.0, 0.25) for step in (5, 7)]
        live.apply_points(0, LatestMetrics(), pack_definition("loss") + b"".join(points))
        assert live.is_dirty
        assert await stored(live, runs) == {"loss": (7, 0.25), "acc": (4, 0.1)}

    asyncio.run(scene())


@given(st.lists(st.text(alphabet="ab\n", max_size=12), min_size=1, max_size=4), st.integers(0, 8))
def test_tail_returns_last_lines(texts: list[str], lines: int) -> None:
    async def scene(folder: Path) -> None:
        streams = FolderStreams(folder)
        parts = []
        for number, text in enumerate(texts, start=1):
            key = StreamKey(AttemptId(f"abcdefgh.{number}"), 0, "stdout")
            await streams.append(key.attempt, key.rank, [Segment(key.name, 0, text.encode())])
            parts.append(StreamRange(key, 0, len(text)))
        result = b"".join(
            [piece async for piece in read_ranges(streams, await last_lines(streams, parts, lines))]
        )
        assert result == b"".join("".join(texts).encode().splitlines(keepends=True)[-lines:] if lines else [])
        await streams.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scene(Path(folder)))


def run(number: int, minute: int, **summary: float) -> RunSummary:
    return RunSummary(RunId(f"run-{number:04d}"), NOW + timedelta(minutes=minute), summary)


def ranks(board: Leaderboard) -> list[int]:
    return [int(row.run.id.removeprefix("run-")) for row in board.rows]


def test_leaderboard_ranks_logged_values_of_runs_without_summary() -> None:
    plain = Dataset("d", NOW, 1, None)
    logged = [
        replace(
            run(number, number), latest={"train_acc": (9, 1.0), "val_acc": (9, number / 10), "x": (9, 0.0)}
        )
        for number in (1, 2, 3)
    ]
    board = rank_runs(plain, logged)
    assert (board.metric, ranks(board), board.rows[0].result) == (
        "val_acc",
        [3, 2, 1],
        LeaderboardResult(0.3, ValueSource.LAST, 9),
    )
    assert ranks(rank_runs(plain, logged, metric="val_acc", higher=False)) == [1, 2, 3]
    summarised = [*logged, run(4, 4, val_acc=0.25)]
    assert ranks(rank_runs(plain, summarised, metric="val_acc")) == [3, 4, 2, 1]
    given = {logged[0].id: LeaderboardResult(0.9, ValueSource.BEST, 4)}
    assert ranks(rank_runs(plain, summarised, metric="val_acc", results=given)) == [1]


def test_records_are_the_runs_that_were_best_when_submitted() -> None:
    values = [0.5, math.nan, 0.4, 0.7, 0.7, math.inf, 0.6, 0.9]
    runs = [run(number, number, acc=value) for number, value in enumerate(values)]
    board = rank_runs(Dataset("d", NOW, 1, None), runs, limit=2)
    assert ([row.value for row in board.records], board.ranked, len(board.rows)) == ([0.5, 0.7, 0.9], 8, 2)
    lower = rank_runs(Dataset("d", NOW, 1, None), runs, higher=False)
    assert [row.value for row in lower.records] == [0.5, 0.4]


def test_leaderboard_selects_metric_and_direction_and_breaks_ties_by_time() -> None:
    plain = Dataset("d", NOW, 1, None)
    runs = [run(1, 5, acc=0.5, loss=1.0), run(2, 4, acc=0.5), run(3, 3, acc=math.nan), run(4, 2, loss=0.5)]
    assert most_used_metric(runs) == "acc"
    board = rank_runs(plain, runs)
    assert (board.metric, board.higher_is_better, ranks(board)) == (
        "acc",
        True,
        [2, 1, 3],
    )
    assert ranks(rank_runs(plain, runs, metric="loss")) == [4, 1]
    upside_down = Dataset("d", NOW, 1, None, metric="loss", higher_is_better=True)
    assert ranks(rank_runs(upside_down, runs)) == [1, 4]
    # the dataset's direction is that of its own metric
    assert rank_runs(upside_down, runs, metric="acc").higher_is_better
    assert rank_runs(plain, []).metric == ""
    studies = [
        run(5, 0, trials=9, trials_failed=0, acc=0.7),
        run(6, 1, trials=12, trials_failed=12),
        run(7, 2, trials=3, trials_failed=0, acc=0.9),
    ]
    assert ranks(rank_runs(plain, studies)) == [7, 5], "a study counts its trials, which is no result"


def test_watcher_is_notified_and_removed() -> None:
    async def scene() -> None:
        hub, id_ = RunSubscriptions(), RunId("abcdefgh")
        with hub.subscribe(id_) as watch:
            assert not await watch.wait(0.001)
            hub.notify_state(RunId("another"))
            assert not await watch.wait(0.001)
            key = StreamKey(AttemptId(f"{id_}.1"), 0, "stdout")
            hub.notify_output(id_, key, 5, b"hello")
            assert await watch.wait(10)
            assert watch.take_stream_lengths() == {key: (5, b"hello")}
            hub.notify_output(id_, key, 10**6, b"x" * (10**6 - 5))
            assert watch.take_stream_lengths() == {key: (10**6, b"")}, (
                "no follower holds more than a little of a stream"
            )
            assert watch.take_stream_lengths() == {}
            hub.close()
            assert await watch.wait(10)
            assert watch.closed
        assert not hub._subscriptions
        with hub.subscribe(id_) as late:
            assert late.closed

    asyncio.run(scene())

"""The cached series are those of `read_series`, whatever arrives in between, within bounded memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.ids import AttemptId, RunId, RunName
from hopyard.domain.metric_records import NO_STEP, POINT, pack_definition, pack_point, pack_purge, series_id
from hopyard.domain.run import RoleSpec, Run, RunPhase, RunSpec
from hopyard.interfaces.streams import Segment, StreamKey
from hopyard.stores.stream_files import FolderStreams
from hopyard.tracking.metrics import read_series
from hopyard.tracking.rollback import VisibleStreams
from hopyard.tracking.run_history import RunHistory
from hopyard.tracking.series_cache import SeriesCache
from hopyard.tracking.series_columns import Columns
from hopyard.tracking.series_cursor import SeriesMark, decode_cursor, encode_cursor

ATTEMPTS = tuple(AttemptId(f"run123.{number}") for number in (1, 2))
NAMES = ("loss", "acc")


def make_run(run: str = "run123") -> Run:
    spec, at = RunSpec("p", (RoleSpec(("x",)),)), datetime(2026, 1, 1, tzinfo=UTC)
    return Run(RunId(run), RunName("a", "p", 1), spec, RunPhase.RUNNING, at)


def record(kind: str, name: str, step: int, value: float) -> bytes:
    if kind == "purge":
        return pack_purge(series_id(name), step)
    return pack_point(POINT, series_id(name), NO_STEP if kind == "unnumbered" else step, 1.0 + step, value)


async def read(cache: SeriesCache, streams: FolderStreams, history: RunHistory) -> dict[str, Columns]:
    lengths = await streams.lengths_of_runs([history.run.id])
    return dict(await cache.metrics(history, lengths, names=["*"], rank=None, max_points=1000))


STREAM_NAMES = st.sampled_from(["metrics", "tensorboard"])
PIECES = st.lists(
    st.tuples(
        st.integers(0, 1),  # the attempt
        st.integers(0, 1),  # the rank
        STREAM_NAMES,
        st.lists(
            st.builds(
                record,
                st.sampled_from(["point", "point", "unnumbered", "purge"]),
                st.sampled_from(NAMES),
                st.integers(0, 9),
                st.floats(allow_nan=False),
            ),
            max_size=4,
        ).map(b"".join),
        st.integers(0, 40),  # bytes of the piece that arrive with the next one
    ),
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@given(PIECES, st.sampled_from(["continued", "restarted", "rolled back"]))
def test_cached_series_are_those_of_a_new_read(
    tmp_path_factory: object, pieces: list[tuple[int, int, str, bytes, int]], kind: str
) -> None:
    folder: Path = tmp_path_factory.mktemp("streams")  # type: ignore[attr-defined]
    views = {
        "continued": VisibleStreams(ATTEMPTS, {}, ATTEMPTS),
        "restarted": VisibleStreams(ATTEMPTS[1:], {}, ATTEMPTS, restarted_attempts=ATTEMPTS[:1]),
        "rolled back": VisibleStreams(ATTEMPTS, {(ATTEMPTS[0], 0, "metrics"): 100}, ATTEMPTS),
    }

    async def scenario() -> None:
        streams = FolderStreams(folder)
        cache = SeriesCache(streams)
        history = RunHistory(make_run(), VisibleStreams(ATTEMPTS[:1], {}, ATTEMPTS[:1]))
        written: dict[StreamKey, bytes] = {}
        stored: dict[StreamKey, int] = {}
        for number, (attempt, rank, name, data, late_bytes) in enumerate(pieces):
            key = StreamKey(ATTEMPTS[attempt], rank, name)
            start = b"".join(map(pack_definition, NAMES))
            written[key] = written.get(key, start) + data
            at, end = stored.get(key, 0), max(0, len(written[key]) - late_bytes)
            if end > at:
                await streams.append(key.attempt, rank, [Segment(name, at, written[key][at:end])])
                stored[key] = end
            if number == len(pieces) // 2:
                history = replace(history, visible_streams=views[kind])
            found, expected = await read(cache, streams, history), await read_series(streams, history)
            assert {
                name: (each.steps.tolist(), each.values.tolist(), each.times.tolist(), each.count)
                for name, each in found.items()
            } == {
                name: (list(each.steps), list(each.values), list(each.times), each.count)
                for name, each in expected.items()
                if each.count
            }
        await streams.close()

    asyncio.run(scenario())


def curve(count: int) -> bytes:
    points = (record("point", "loss", step, float(step)) for step in range(count))
    return pack_definition("loss") + b"".join(points)


def test_memory_is_bounded_and_an_unchanged_run_is_not_read_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        streams = FolderStreams(tmp_path)
        cache = SeriesCache(streams, max_bytes=100_000)
        histories = []
        for number in range(6):
            run = make_run(f"run12{number}")
            attempt = AttemptId(f"{run.id}.1")
            await streams.append(attempt, 0, [Segment("metrics", 0, curve(900))])
            view = VisibleStreams((attempt,), {}, (attempt,))
            histories.append(RunHistory(replace(run, phase=RunPhase.SUCCEEDED), view))
        for history in histories:
            assert len((await read(cache, streams, history))["loss"]) == 900
            assert cache.memory.used_bytes <= 100_000
        assert (cache.reads, len(cache.memory)) == (6, 4)
        for history in histories[2:]:
            await read(cache, streams, history)
        assert cache.reads == 6
        await read(cache, streams, histories[0])
        assert cache.reads == 7
        await streams.close()

    asyncio.run(scenario())


def test_long_series_is_read_in_full_when_the_request_allows_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        streams, cache = FolderStreams(tmp_path), SeriesCache(FolderStreams(tmp_path))
        await streams.append(ATTEMPTS[0], 0, [Segment("metrics", 0, curve(900))])
        history = RunHistory(make_run(), VisibleStreams(ATTEMPTS[:1], {}, ATTEMPTS[:1]))
        lengths = await streams.lengths_of_runs([history.run.id])

        async def loss(max_points: int) -> Columns:
            found = await cache.metrics(history, lengths, names=["loss"], rank=None, max_points=max_points)
            return found["loss"]

        part = await loss(100)
        assert (part.count, part.is_downsampled, len(part) <= 100) == (900, True, True)
        assert (part.values.min(), part.values.max()) == (0.0, 899.0)
        assert len(await loss(1000)) == len(await loss(100)) == 900
        assert cache.reads == 2
        await streams.close()

    asyncio.run(scenario())


@given(
    st.dictionaries(
        st.tuples(st.just(RunId("run123")), st.none() | st.integers(0, 9), st.text(max_size=5)),
        st.builds(SeriesMark, st.integers(0, 2**40), st.integers(0, 2**32 - 1)),
    )
)
def test_cursor_is_read_back(marks: dict[tuple[RunId, int | None, str], SeriesMark]) -> None:
    assert decode_cursor(encode_cursor(marks)) == marks

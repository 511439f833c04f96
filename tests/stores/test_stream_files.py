from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.ids import AttemptId, RunId
from hopyard.errors import SpecError, StorageFull
from hopyard.interfaces.streams import Segment, StreamKey
from hopyard.stores.stream_files import FolderStreams
from tests.datasets.folder_transport import small_disk

KEY = StreamKey(AttemptId("run-1.1"), 0, "stdout")


def run_scenario(
    root: Path, scenario: Callable[[FolderStreams], Awaitable[None]], *, max_open: int = 256
) -> None:
    async def run() -> None:
        streams = FolderStreams(root, max_open=max_open)
        try:
            await scenario(streams)
        finally:
            await streams.close()

    asyncio.run(run())


async def append(streams: FolderStreams, key: StreamKey, offset: int, data: bytes) -> int:
    [length] = await streams.append(key.attempt, key.rank, [Segment(key.name, offset, data)])
    return length


def test_append_is_accepted_only_at_the_exact_end(tmp_path: Path) -> None:
    async def scenario(streams: FolderStreams) -> None:
        assert await append(streams, KEY, 3, b"gap") == 0
        assert await streams.lengths(KEY.attempt, 0) == {}, "a gap creates no stream"
        assert await append(streams, KEY, 0, b"hello") == 5
        assert await append(streams, KEY, 0, b"hello") == 5, "sent again"
        assert await append(streams, KEY, 3, b"lo world") == 11, "overlapping bytes are skipped"
        assert await append(streams, KEY, 20, b"gap") == 11
        assert await append(streams, KEY, 11, b"") == 11
        assert await streams.read(KEY, 0, 100) == b"hello world"
        assert await streams.read(KEY, 6, 2) == b"wo"
        assert await streams.read(KEY, 11, 5) == b""
        assert await streams.read(StreamKey(KEY.attempt, 7, "stdout"), 0, 5) == b""
        await streams.sync(KEY.attempt, 0)
        await streams.sync(AttemptId("unknown.1"), 0)

    run_scenario(tmp_path / "streams", scenario)


def test_lengths_of_runs_are_those_of_all_their_streams(tmp_path: Path) -> None:
    async def scenario(streams: FolderStreams) -> None:
        other = StreamKey(AttemptId("run-1.2"), 3, "metrics")
        await append(streams, KEY, 0, b"hello")
        await append(streams, other, 0, b"hi")
        run, unknown = RunId("run-1"), RunId("unknown")
        found = await streams.lengths_of_runs([run, unknown])
        assert found == {run: {KEY: 5, other: 2}, unknown: {}}
        assert set(found[run]) == set(await streams.list(run))

    run_scenario(tmp_path / "streams", scenario)


def test_segments_of_a_replica_are_appended_in_order(tmp_path: Path) -> None:
    async def scenario(streams: FolderStreams) -> None:
        first = [
            Segment("events", 0, b"{}\n"),
            Segment("stdout", 5, b"gap"),
            Segment("metrics", 0, memoryview(b"points")),
        ]
        assert await streams.append(KEY.attempt, 0, first) == [3, 0, 6]
        assert await streams.append(
            KEY.attempt, 0, [Segment("events", 3, b"[]\n"), Segment("events", 6, b"()\n")]
        ) == [6, 9]
        assert await streams.append(KEY.attempt, 0, []) == []
        assert await streams.lengths(KEY.attempt, 0) == {"events": 9, "metrics": 6}
        assert await streams.read(StreamKey(KEY.attempt, 0, "events"), 0, 100) == b"{}\n[]\n()\n"

    run_scenario(tmp_path / "streams", scenario)


Ops = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.binary(max_size=12)), max_size=30)


@given(Ops)
@settings(max_examples=60)
def test_stream_equals_append_only_bytes(
    tmp_path_factory: pytest.TempPathFactory, ops: list[tuple[int, int, bytes]]
) -> None:
    """At most one file is open, so that each call may find its file closed."""

    async def scenario(streams: FolderStreams) -> None:
        model: dict[int, bytes] = {}
        for rank, offset, data in ops:
            held = model.get(rank, b"")
            if offset <= len(held):
                held = held + data[len(held) - offset :] if offset + len(data) > len(held) else held
                if held:
                    model[rank] = held
            key = StreamKey(KEY.attempt, rank, "stdout")
            assert await append(streams, key, offset, data) == len(held)
        for rank, held in model.items():
            assert await streams.read(StreamKey(KEY.attempt, rank, "stdout"), 0, 1000) == held
            assert await streams.lengths(KEY.attempt, rank) == {"stdout": len(held)}

    run_scenario(tmp_path_factory.mktemp("streams"), scenario, max_open=1)


def test_many_streams_with_few_open_files(tmp_path: Path) -> None:
    async def scenario(streams: FolderStreams) -> None:
        keys = [
            StreamKey(AttemptId(f"run-{n}.1"), rank, name)
            for n in range(8)
            for rank in range(2)
            for name in ("stdout", "metrics")
        ]
        for part in range(5):
            data = b"%d\n" % part
            await asyncio.gather(*(append(streams, key, part * len(data), data) for key in keys))
        assert {await streams.read(key, 0, 100) for key in keys} == {b"0\n1\n2\n3\n4\n"}
        assert list(await streams.list(RunId("run-3"))) == sorted(
            key for key in keys if key.attempt == "run-3.1"
        )
        await streams.delete(RunId("run-3"))
        assert not await streams.list(RunId("run-3"))
        assert await streams.read(keys[0], 0, 2) == b"0\n", "other runs stay"

    run_scenario(tmp_path, scenario, max_open=3)


def test_appended_bytes_survive_a_restart(tmp_path: Path) -> None:
    async def first(streams: FolderStreams) -> None:
        await append(streams, KEY, 0, b"one")

    async def second(streams: FolderStreams) -> None:
        assert await streams.lengths(KEY.attempt, 0) == {"stdout": 3}
        assert await append(streams, KEY, 3, b"two") == 6

    run_scenario(tmp_path, first)
    run_scenario(tmp_path, second)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden"])
def test_invalid_stream_names_are_refused(tmp_path: Path, name: str) -> None:
    async def scenario(streams: FolderStreams) -> None:
        with pytest.raises(SpecError):
            await append(streams, StreamKey(KEY.attempt, 0, name), 0, b"x")
        assert await append(streams, KEY, 0, b"kept") == 4
        await streams.delete(RunId("../streams"))  # there never were any of such an id
        assert await streams.read(KEY, 0, 10) == b"kept"

    run_scenario(tmp_path / "streams", scenario)


def test_full_disk_leaves_no_partial_append(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:

        async def scenario(streams: FolderStreams) -> None:
            assert await append(streams, KEY, 0, b"kept") == 4
            with pytest.raises(StorageFull):
                await append(streams, KEY, 4, b"x" * (4 << 20))
            assert await streams.lengths(KEY.attempt, 0) == {"stdout": 4}
            assert await append(streams, KEY, 4, b" on") == 7
            assert await streams.read(KEY, 0, 10) == b"kept on"
            with pytest.raises(StorageFull):
                await streams.append(
                    KEY.attempt,
                    0,
                    [
                        Segment("events", 0, b"{}\n"),
                        Segment("stdout", 7, b"x" * (4 << 20)),
                        Segment("metrics", 0, b"x"),
                    ],
                )
            assert await streams.lengths(KEY.attempt, 0) == {"events": 3, "stdout": 7}, (
                "earlier segments were accepted"
            )

        run_scenario(disk / "streams", scenario)

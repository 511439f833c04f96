"""The media that users see: without rolled-back parts, and without contents that have not arrived."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hopyard.domain.ids import AttemptId, RunId, RunName
from hopyard.domain.media import MediaKind, MediaRecord, decode_record, encode_record
from hopyard.domain.metric_records import POINT, pack_definition, pack_point, series_id
from hopyard.domain.run import RoleSpec, Run, RunPhase, RunSpec
from hopyard.errors import NotFound
from hopyard.interfaces.streams import Segment
from hopyard.stores.stream_files import FolderStreams
from hopyard.tracking.media import find_media, list_media, read_content
from hopyard.tracking.media_index import MediaIndexes
from hopyard.tracking.rollback import VisibleStreams
from hopyard.tracking.run_history import RunHistory

RUN = Run(
    RunId("r"),
    RunName("a", "p", 1),
    RunSpec("p", (RoleSpec(("x",)),)),
    RunPhase.SUCCEEDED,
    datetime(2026, 1, 1, tzinfo=UTC),
)
FIRST, SECOND = AttemptId("r.1"), AttemptId("r.2")


def line(step: int, name: str = "x", offset: int = 0, size: int = 3) -> bytes:
    return encode_record(
        MediaRecord(name, MediaKind.TEXT, "text/plain", step, 0, offset, size, "0" * 32, 1.0, "c", {"n": 1.0})
    )


async def fill(streams: FolderStreams, attempt: AttemptId, index: bytes, data: bytes, rank: int = 0) -> None:
    await streams.append(attempt, rank, [Segment("media", 0, index), Segment("media_data", 0, data)])


def steps(items: Sequence[object]) -> list[tuple[str, int]]:
    return [(item.record.name, item.record.step) for item in items]  # type: ignore[attr-defined]


def test_items_are_listed_found_and_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        streams = FolderStreams(tmp_path)
        index = line(2) + b"damaged\n" + line(1, offset=3) + line(3, offset=4, size=3) + line(4)[:-5]
        await fill(streams, FIRST, index, b"abcdef")
        await fill(streams, FIRST, line(1) + line(1, name="y"), b"xyz", rank=1)
        history = RunHistory(RUN, VisibleStreams((FIRST,), {}))
        items = await list_media(MediaIndexes(streams), history)
        # step 3 has not arrived, and the line of step 4 is incomplete
        assert [(item.record.name, item.record.step, item.rank) for item in items] == [
            ("x", 1, 0),
            ("x", 1, 1),
            ("x", 2, 0),
            ("y", 1, 1),
        ]
        found = await find_media(streams, RUN, items[0].id)
        assert found == items[0]
        assert b"".join([part async for part in read_content(streams, found)]) == b"def"
        assert steps(await list_media(MediaIndexes(streams), history, names=["y*"])) == [("y", 1)]
        assert len(await list_media(MediaIndexes(streams), history, rank=0)) == 2
        for unknown in ("1-0-1", "9-0-0", "1-0-999", "x", "1-0-0-0"):
            with pytest.raises(NotFound):
                await find_media(streams, RUN, unknown)
        await streams.close()

    asyncio.run(scenario())


def test_items_after_the_checkpoint_are_rolled_back(tmp_path: Path) -> None:
    async def scenario() -> list[tuple[str, int]]:
        streams = FolderStreams(tmp_path)
        await fill(streams, FIRST, line(1) + line(2) + line(3), b"abc")
        await fill(streams, SECOND, line(2), b"xyz")
        lengths = {(FIRST, 0, "media"): len(line(1)), (FIRST, 0, "media_data"): 3}
        view = VisibleStreams((FIRST, SECOND), lengths, (FIRST, SECOND))
        found = await list_media(MediaIndexes(streams), RunHistory(RUN, view))
        await streams.close()
        assert [item.attempt for item in found] == [FIRST, SECOND]
        return steps(found)

    assert asyncio.run(scenario()) == [("x", 1), ("x", 2)]


def test_index_is_read_further_from_where_it_was_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        streams = FolderStreams(tmp_path)
        indexes, history = MediaIndexes(streams), RunHistory(RUN, VisibleStreams((FIRST,), {}))
        first, second = line(1), line(2)
        await streams.append(FIRST, 0, [Segment("media", 0, first + second[:9])])
        assert await list_media(indexes, history) == []  # no content yet
        await streams.append(FIRST, 0, [Segment("media_data", 0, b"abc")])
        assert steps(await list_media(indexes, history)) == [("x", 1)]
        rest = second[9:] + b"x" * 2**21 + b"\n" + line(3)
        await streams.append(FIRST, 0, [Segment("media", len(first) + 9, rest)])
        expected = await list_media(MediaIndexes(streams), history)
        assert steps(expected) == [("x", 1), ("x", 2), ("x", 3)]
        assert await list_media(indexes, history) == expected
        await streams.close()

    asyncio.run(scenario())


def test_script_that_resumes_from_its_own_checkpoint_keeps_earlier_items(tmp_path: Path) -> None:
    async def scenario(second: bytes, metrics: bytes = b"") -> list[tuple[str, int]]:
        streams = FolderStreams(tmp_path / str(len(second) + len(metrics)))
        await fill(streams, FIRST, line(1) + line(2) + line(3), b"abc")
        await fill(streams, SECOND, second, b"xyz")
        if metrics:
            await streams.append(SECOND, 0, [Segment("metrics", 0, metrics)])
        view = VisibleStreams((SECOND,), {}, (FIRST, SECOND), restarted_attempts=(FIRST,))
        found = await list_media(MediaIndexes(streams), RunHistory(RUN, view))
        await streams.close()
        return steps(found)

    loss = pack_definition("loss") + pack_point(POINT, series_id("loss"), 2, 1.0, 0.5)
    assert asyncio.run(scenario(line(3))) == [("x", 1), ("x", 2), ("x", 3)]
    assert asyncio.run(scenario(b"")) == [("x", 1), ("x", 2), ("x", 3)]
    assert asyncio.run(scenario(line(3), loss)) == [("x", 1), ("x", 3)]


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"kind": "page"},
        {"type": "text/html"},
        {"step": 1.5},
        {"step": 2**63},
        {"offset": -1},
        {"size": True},
        {"digest": "../x"},
        {"t": -1},
        {"index": None},
    ],
)
def test_damaged_line_is_no_record(change: dict[str, object]) -> None:
    fields = json.loads(line(1))
    assert decode_record(fields) is not None
    assert decode_record(fields | change) is None

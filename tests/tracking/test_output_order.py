"""The order of a run's output, its last lines, and its parts by time."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.ids import AttemptId
from hopyard.interfaces.streams import Segment
from hopyard.stores.stream_files import FolderStreams
from hopyard.tracking.output_order import OutputOrder, OutputSegment, last_line_parts, parts_since
from hopyard.tracking.rollback import VisibleStreams

ATTEMPT = AttemptId("abcdefgh.1")
NAMES = ("stdout", "stderr")
# text of each write with its stream
WRITES = st.lists(st.tuples(st.integers(0, 1), st.text(alphabet="ab\n", min_size=1, max_size=6)), max_size=12)


def with_streams(scenario: Callable[[FolderStreams], Awaitable[None]]) -> None:
    async def whole(folder: Path) -> None:
        streams = FolderStreams(folder)
        await scenario(streams)
        await streams.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(whole(Path(folder)))


async def write_all(streams: FolderStreams, writes: list[tuple[int, str]], indexed: int) -> None:
    """Appends the writes, and an index of the first `indexed`."""
    sizes, index = [0, 0], b""
    for number, (stream, text) in enumerate(writes):
        await streams.append(ATTEMPT, 0, [Segment(NAMES[stream], sizes[stream], text.encode())])
        sizes[stream] += len(text)
        if number < indexed:
            index += b"%d.500 %d %d\n" % (number, stream, sizes[stream])
    await streams.append(ATTEMPT, 0, [Segment("output_index", 0, index + b"damaged\n7.0 1 ")])


async def read_texts(streams: FolderStreams, parts: list[OutputSegment]) -> list[tuple[str, str]]:
    return [
        (part.key.name, (await streams.read(part.key, part.begin, part.end - part.begin)).decode())
        for part in parts
    ]


async def all_parts(streams: FolderStreams) -> list[OutputSegment]:
    view = VisibleStreams((ATTEMPT,), {}, (ATTEMPT,))
    return await OutputOrder(streams).parts(view, ATTEMPT, [0], NAMES, cursors={})


@given(WRITES)
def test_indexed_output_is_in_order(writes: list[tuple[int, str]]) -> None:
    async def scenario(streams: FolderStreams) -> None:
        await write_all(streams, writes, len(writes))
        parts = await all_parts(streams)
        assert await read_texts(streams, parts) == [(NAMES[stream], text) for stream, text in writes]
        assert [part.at for part in parts] == [number + 0.5 for number in range(len(writes))]
        late = parts_since(parts, 2.0)
        assert await read_texts(streams, late) == [(NAMES[stream], text) for stream, text in writes[2:]]

    with_streams(scenario)


@given(WRITES, st.integers(0, 6), st.integers(0, 6))
def test_follower_gets_all_bytes_once(writes: list[tuple[int, str]], indexed: int, before: int) -> None:
    """The index may lag behind, and grow between two reads."""

    async def scenario(streams: FolderStreams) -> None:
        view, order = VisibleStreams((ATTEMPT,), {}, (ATTEMPT,)), OutputOrder(streams)
        cursors: dict[tuple[AttemptId, int, str], int] = {}
        received = {"stdout": "", "stderr": ""}
        for count in (before, len(writes)):
            await write_all(streams, writes[:count], min(indexed, count))
            parts = await order.parts(view, ATTEMPT, [0], NAMES, cursors=cursors)
            for part, (name, text) in zip(parts, await read_texts(streams, parts), strict=True):
                received[name] += text
                cursors[ATTEMPT, 0, name] = part.end
        assert received == {
            name: "".join(text for stream, text in writes if NAMES[stream] == name) for name in NAMES
        }

    with_streams(scenario)


@given(WRITES, st.integers(0, 8))
def test_tail_has_the_lines_that_end_last(writes: list[tuple[int, str]], lines: int) -> None:
    async def scenario(streams: FolderStreams) -> None:
        await write_all(streams, writes, len(writes))
        tail = await read_texts(streams, await last_line_parts(streams, await all_parts(streams), lines))
        # each line with its stream, in the order of their ends
        ended: list[tuple[int, str]] = []
        rests: dict[int, tuple[int, str]] = {}
        for number, (stream, text) in enumerate(writes):
            *whole, rest = (rests.get(stream, (0, ""))[1] + text).split("\n")
            ended += [(stream, line + "\n") for line in whole]
            rests[stream] = number, rest
        ended += [(stream, rest) for stream, (_, rest) in sorted(rests.items(), key=lambda e: e[1]) if rest]
        expected = ended[len(ended) - min(lines, len(ended)) :]
        for stream, name in enumerate(NAMES):
            assert "".join(text for key, text in tail if key == name) == "".join(
                line for key, line in expected if key == stream
            )

    with_streams(scenario)

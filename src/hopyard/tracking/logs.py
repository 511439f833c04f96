"""The log as users see it: the visible parts of all attempts, one after another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.run_history import RunHistory

READ_BYTES = 64 * 1024  # what one reader holds of memory


@dataclass(frozen=True, slots=True)
class StreamRange:
    """The bytes [begin, end) of one stream."""

    key: StreamKey
    begin: int
    end: int


async def visible_ranges(
    streams: Streams, history: RunHistory, *, stream: str, rank: int
) -> list[StreamRange]:
    """What is seen of this stream of one rank, attempt by attempt."""
    parts: list[StreamRange] = []
    for attempt in history.visible_streams.attempts:
        length = (await streams.lengths(attempt, rank)).get(stream, 0)
        limit = history.visible_streams.visible_length_of(attempt, rank, stream)
        parts.append(
            StreamRange(StreamKey(attempt, rank, stream), 0, length if limit is None else min(limit, length))
        )
    return [part for part in parts if part.end]


async def last_lines(streams: Streams, ranges: Sequence[StreamRange], lines: int) -> list[StreamRange]:
    """The parts cut down to their last `lines` lines. A last line without its end counts."""
    if lines <= 0:
        return []
    missing, first = lines, True
    for at in range(len(ranges) - 1, -1, -1):
        part, end = ranges[at], ranges[at].end
        while end > part.begin:
            begin = max(part.begin, end - READ_BYTES)
            data = await streams.read(part.key, begin, end - begin)
            cut = len(data)
            if first and data.endswith(b"\n"):
                cut -= 1  # the end of the last line begins none
            first = False
            while (cut := data.rfind(b"\n", 0, cut)) >= 0:
                missing -= 1
                if not missing:
                    return [StreamRange(part.key, begin + cut + 1, part.end), *ranges[at + 1 :]]
            end = begin
    return list(ranges)


async def read_ranges(streams: Streams, ranges: Sequence[StreamRange]) -> AsyncIterator[bytes]:
    """The bytes, a piece at a time."""
    for part in ranges:
        at = part.begin
        while at < part.end and (data := await streams.read(part.key, at, min(READ_BYTES, part.end - at))):
            at += len(data)
            yield data

"""The log that users see: the visible parts of all attempts in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.run_history import RunHistory

READ_BYTES = 64 * 1024  # memory per reader


@dataclass(frozen=True, slots=True)
class StreamRange:
    """The bytes [begin, end) of one stream."""

    key: StreamKey
    begin: int
    end: int


async def visible_ranges(
    streams: Streams, history: RunHistory, *, stream: str, rank: int
) -> list[StreamRange]:
    """Returns the visible part of this stream of one rank, attempt by attempt."""
    ranges: list[StreamRange] = []
    for attempt in history.visible_streams.attempts:
        length = (await streams.lengths(attempt, rank)).get(stream, 0)
        limit = history.visible_streams.visible_length_of(attempt, rank, stream)
        end = length if limit is None else min(limit, length)
        ranges += (
            StreamRange(StreamKey(attempt, rank, stream), *part)
            for part in history.visible_streams.visible_parts(attempt, rank, stream, 0, end)
        )
    return ranges


async def last_lines(streams: Streams, ranges: Sequence[StreamRange], lines: int) -> list[StreamRange]:
    """Returns the ranges cut down to their last `lines` lines. A last line without a line break counts."""
    if lines <= 0:
        return []
    remaining, is_last_read = lines, True
    for index in range(len(ranges) - 1, -1, -1):
        part, end = ranges[index], ranges[index].end
        while end > part.begin:
            begin = max(part.begin, end - READ_BYTES)
            data = await streams.read(part.key, begin, end - begin)
            position = len(data)
            if is_last_read and data.endswith(b"\n"):
                position -= 1  # this line break ends the last line and begins no other
            is_last_read = False
            while (position := data.rfind(b"\n", 0, position)) >= 0:
                remaining -= 1
                if not remaining:
                    return [StreamRange(part.key, begin + position + 1, part.end), *ranges[index + 1 :]]
            end = begin
    return list(ranges)


async def read_ranges(streams: Streams, ranges: Sequence[StreamRange]) -> AsyncIterator[bytes]:
    """Yields the bytes of the ranges in pieces."""
    for part in ranges:
        offset = part.begin
        while offset < part.end and (
            data := await streams.read(part.key, offset, min(READ_BYTES, part.end - offset))
        ):
            offset += len(data)
            yield data

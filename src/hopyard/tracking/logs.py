"""The log as users see it: the visible parts of all attempts, one after another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.past import Past

PIECE_BYTES = 64 * 1024  # what one reader holds of memory


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes [begin, end) of one stream."""

    key: StreamKey
    begin: int
    end: int


async def visible_parts(streams: Streams, past: Past, *, stream: str, rank: int) -> list[Part]:
    """What is seen of this stream of one rank, attempt by attempt."""
    parts: list[Part] = []
    for attempt in past.view.attempts:
        length = (await streams.lengths(attempt, rank)).get(stream, 0)
        limit = past.view.limit(attempt, rank, stream)
        parts.append(
            Part(StreamKey(attempt, rank, stream), 0, length if limit is None else min(limit, length))
        )
    return [part for part in parts if part.end]


async def tail(streams: Streams, parts: Sequence[Part], lines: int) -> list[Part]:
    """The parts cut down to their last `lines` lines. A last line without its end counts."""
    if lines <= 0:
        return []
    missing, first = lines, True
    for at in range(len(parts) - 1, -1, -1):
        part, end = parts[at], parts[at].end
        while end > part.begin:
            begin = max(part.begin, end - PIECE_BYTES)
            data = await streams.read(part.key, begin, end - begin)
            cut = len(data)
            if first and data.endswith(b"\n"):
                cut -= 1  # the end of the last line begins none
            first = False
            while (cut := data.rfind(b"\n", 0, cut)) >= 0:
                missing -= 1
                if not missing:
                    return [Part(part.key, begin + cut + 1, part.end), *parts[at + 1 :]]
            end = begin
    return list(parts)


async def read_parts(streams: Streams, parts: Sequence[Part]) -> AsyncIterator[bytes]:
    """The bytes, a piece at a time."""
    for part in parts:
        at = part.begin
        while at < part.end and (data := await streams.read(part.key, at, min(PIECE_BYTES, part.end - at))):
            at += len(data)
            yield data

"""The output of a run in the order in which it arrived: both streams of all ranks, merged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from math import inf

from hopyard.domain.ids import AttemptId
from hopyard.domain.stream_limits import OUTPUT_INDEX_STREAM, OUTPUT_STREAMS
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.rollback import VisibleStreams

_READ_BYTES = 256 * 1024
_LINES_PER_STEP = 5000


@dataclass(frozen=True, slots=True)
class OutputSegment:
    """The bytes [begin, end) of one stream. at: when they arrived, in unix seconds; None if unknown."""

    key: StreamKey
    begin: int
    end: int
    at: float | None


class OutputOrder:
    """Orders the output of a run. It remembers how much of each index was used, so that a follower reads only
    what is new."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._index_offsets: dict[tuple[AttemptId, int], int] = {}

    async def parts(
        self,
        view: VisibleStreams,
        attempt: AttemptId,
        ranks: Iterable[int],
        names: Sequence[str],
        *,
        cursors: Mapping[tuple[AttemptId, int, str], int],
    ) -> list[OutputSegment]:
        """Returns the visible output of one attempt from `cursors` on. A later call continues after it.

        Output that the index of its replica does not cover comes last, stream by stream.
        """
        by_rank: list[list[OutputSegment]] = []
        for rank in ranks:
            lengths = await self._streams.lengths(attempt, rank)
            keys = [StreamKey(attempt, rank, name) for name in names]
            begins = {key.name: cursors.get((attempt, rank, key.name), 0) for key in keys}
            ends = {key.name: _visible_end(view, key, lengths.get(key.name, 0)) for key in keys}
            if any(ends[name] > begins[name] for name in names):
                by_rank.append(await self._rank_parts(attempt, rank, begins, ends))
        merged = (
            by_rank[0]
            if len(by_rank) == 1
            else list(merge(*by_rank, key=lambda part: inf if part.at is None else part.at))
        )
        return [
            replace(part, begin=begin, end=end)
            for part in merged
            for begin, end in view.visible_parts(attempt, part.key.rank, part.key.name, part.begin, part.end)
        ]

    async def _rank_parts(
        self, attempt: AttemptId, rank: int, begins: Mapping[str, int], ends: Mapping[str, int]
    ) -> list[OutputSegment]:
        offset = self._index_offsets.get((attempt, rank), 0)
        index = await self._read_index(attempt, rank, offset)
        parts: list[OutputSegment] = []
        position, is_used = dict(begins), True
        for number, line in enumerate(index.splitlines(keepends=True), start=1):
            if not line.endswith(b"\n"):
                break
            if number % _LINES_PER_STEP == 0:
                await asyncio.sleep(0)  # a long index must not delay other requests
            entry = _parse_entry(line)
            if entry is not None and entry[1] in position:
                at, name, end = entry
                is_used &= end <= ends[name]
                if (part_end := min(end, ends[name])) > position[name]:
                    parts.append(OutputSegment(StreamKey(attempt, rank, name), position[name], part_end, at))
                    position[name] = part_end
            offset += len(line) if is_used else 0
        self._index_offsets[attempt, rank] = offset
        return parts + [
            OutputSegment(StreamKey(attempt, rank, name), begin, ends[name], None)
            for name, begin in position.items()
            if ends[name] > begin
        ]

    async def _read_index(self, attempt: AttemptId, rank: int, offset: int) -> bytes:
        key, blocks = StreamKey(attempt, rank, OUTPUT_INDEX_STREAM), []
        while data := await self._streams.read(key, offset, _READ_BYTES):
            blocks.append(data)
            offset += len(data)
        return b"".join(blocks)


def _visible_end(view: VisibleStreams, key: StreamKey, length: int) -> int:
    limit = view.visible_length_of(key.attempt, key.rank, key.name)
    return length if limit is None else min(limit, length)


def _parse_entry(line: bytes) -> tuple[float, str, int] | None:
    """Returns time, stream and end offset of an entry; None for a malformed one."""
    fields = line.split()
    try:
        return float(fields[0]), OUTPUT_STREAMS[int(fields[1])], int(fields[2])
    except (ValueError, IndexError):
        return None


async def last_line_parts(
    streams: Streams, parts: Sequence[OutputSegment], lines: int
) -> list[OutputSegment]:
    """Returns the parts cut down to the last `lines` lines, each counted where it ends. An unfinished line
    counts."""
    remaining = lines
    begins: dict[StreamKey, int] = {}  # of the selected lines of each stream
    selected: set[StreamKey] = set()
    for key, end in reversed(_last_ends(parts).items()):
        if remaining > 0 and await streams.read(key, end - 1, 1) != b"\n":
            remaining -= 1
            selected.add(key)
    without_begin = set(selected)  # the line before the selected ones has not been found yet
    for part in reversed(parts):
        key, end = part.key, part.end
        if remaining <= 0 and not without_begin:
            break
        while end > part.begin and (remaining > 0 or key in without_begin):
            begin = max(part.begin, end - _READ_BYTES)
            data = await streams.read(key, begin, end - begin)
            position = len(data)
            while (position := data.rfind(b"\n", 0, position)) >= 0:
                if key in without_begin:
                    begins[key] = begin + position + 1
                    without_begin.discard(key)
                if remaining <= 0:
                    break
                remaining -= 1
                selected.add(key)
                without_begin.add(key)
            end = begin
    for key in without_begin:
        begins.pop(key, None)
    return [
        replace(part, begin=max(part.begin, begins.get(part.key, 0)))
        for part in parts
        if part.key in selected and part.end > begins.get(part.key, 0)
    ]


def _last_ends(parts: Sequence[OutputSegment]) -> dict[StreamKey, int]:
    """Returns the end of each stream, in the order of their last parts."""
    ends: dict[StreamKey, int] = {}
    for part in parts:
        ends.pop(part.key, None)
        ends[part.key] = part.end
    return ends


def parts_since(parts: Sequence[OutputSegment], since: float) -> list[OutputSegment]:
    """Returns the parts that arrived at or after `since`, in unix seconds, and those of an unknown time."""
    return [part for part in parts if part.at is None or part.at >= since]

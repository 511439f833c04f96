"""Reads the index of a replica's media, its stream `media`, and parses each line once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from hopyard.domain.ids import AttemptId
from hopyard.domain.media import MAX_LINE_BYTES, MediaRecord, decode_record
from hopyard.domain.stream_limits import MEDIA_STREAM
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.json_lines import parse_line

_READ_BYTES = 1024 * 1024
_MAX_CACHED_RECORDS = 200_000  # of all indexes together, about 100 MB


@dataclass(slots=True)
class _Index:
    """read_bytes: the end of the last complete line that was parsed. records: with the offsets of their
    lines."""

    read_bytes: int = 0
    records: list[tuple[int, MediaRecord]] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class MediaIndexes:
    """Indexes of media, of which the newest used ones are kept in memory."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self._indexes: OrderedDict[tuple[AttemptId, int], _Index] = OrderedDict()

    async def read(self, attempt: AttemptId, rank: int, length: int | None) -> list[tuple[int, MediaRecord]]:
        """Returns the records of complete lines in the first `length` bytes, all without, with the offsets of
        their lines."""
        index = self._indexes.setdefault((attempt, rank), _Index())
        self._indexes.move_to_end((attempt, rank))
        async with index.lock:
            while True:
                key = StreamKey(attempt, rank, MEDIA_STREAM)
                data = await self.streams.read(key, index.read_bytes, _READ_BYTES)
                complete = data[: data.rfind(b"\n") + 1]
                if not complete and len(data) < _READ_BYTES:
                    break
                # a line longer than a block is damaged, and skipped in parts
                block = complete or data
                index.records += await asyncio.to_thread(_parse, block, index.read_bytes)
                index.read_bytes += len(block)
        self._shrink()
        return [each for each in index.records if length is None or each[0] < length]

    def _shrink(self) -> None:
        count = sum(len(index.records) for index in self._indexes.values())
        while count > _MAX_CACHED_RECORDS and len(self._indexes) > 1:
            _, oldest = self._indexes.popitem(last=False)
            count -= len(oldest.records)


def _parse(data: bytes, start: int) -> list[tuple[int, MediaRecord]]:
    records: list[tuple[int, MediaRecord]] = []
    offset = start
    for line in data.splitlines(keepends=True):
        if line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES:
            fields = parse_line(line)
            record = None if fields is None else decode_record(fields)
            if record is not None:
                records.append((offset, record))
        offset += len(line)
    return records

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hopyard.domain.ids import AttemptId, RunId


@dataclass(frozen=True, slots=True, order=True)
class StreamKey:
    attempt: AttemptId
    rank: int
    name: str  # stdout, stderr, metrics, tensorboard, events, system, journal


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes of one stream, starting at `offset`."""

    stream: str
    offset: int
    data: bytes | memoryview


class Streams(Protocol):
    """Append-only bytes of replicas. A stream of length n accepts bytes at offset n only."""

    async def append(self, attempt: AttemptId, rank: int, segments: Sequence[Segment], /) -> Sequence[int]:
        """Appends segments of a replica's streams in order, each if its stream's length is its offset.

        Bytes that exist already are skipped if the segment overlaps the end. Returns the length of each
        stream afterwards, even if nothing was appended (a gap appends nothing). Raises StorageFull; the
        segments before the one without space are then appended.
        """
        ...

    async def read(self, key: StreamKey, offset: int, limit: int, /) -> bytes:
        """Returns at most `limit` bytes from `offset`; empty at or after the end, or without such a
        stream."""
        ...

    async def lengths(self, attempt: AttemptId, rank: int, /) -> Mapping[str, int]: ...
    async def list(self, run: RunId, /) -> Sequence[StreamKey]: ...
    async def lengths_of_runs(self, runs: Sequence[RunId], /) -> Mapping[RunId, Mapping[StreamKey, int]]:
        """Returns the length of each stream of these runs; an empty mapping for a run without streams."""
        ...

    async def sync(self, attempt: AttemptId, rank: int, /) -> None:
        """Makes all appended bytes of this replica durable."""

    async def list_runs(self) -> Sequence[RunId]:
        """Returns the runs that have streams, unknown runs included."""
        ...

    async def delete(self, run: RunId, /) -> None:
        """Removes a run's streams. Idempotent. Raises OSError if some cannot be removed."""

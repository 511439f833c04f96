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
    """Bytes of one stream, beginning at `offset`."""

    stream: str
    offset: int
    data: bytes | memoryview


class Streams(Protocol):
    """Append-only bytes of replicas. Accepts bytes at offset n only when it holds exactly n."""

    async def append(self, attempt: AttemptId, rank: int, segments: Sequence[Segment], /) -> Sequence[int]:
        """Append segments of a replica's streams in order, each if its stream's length is its offset; bytes
        that are already there are skipped when they overlap the end. Returns each one's length afterwards,
        whether or not anything was taken (a gap takes nothing). Raises StorageFull; what came before the
        segment that found no room is taken then."""
        ...

    async def read(self, key: StreamKey, offset: int, limit: int, /) -> bytes:
        """At most `limit` bytes from `offset`; empty at or after the end, or when there is no such stream."""
        ...

    async def lengths(self, attempt: AttemptId, rank: int, /) -> Mapping[str, int]: ...
    async def list(self, run: RunId, /) -> Sequence[StreamKey]: ...
    async def sync(self, attempt: AttemptId, rank: int, /) -> None:
        """Make everything taken so far of this replica durable."""

    async def list_runs(self) -> Sequence[RunId]:
        """Whose streams there are, whether or not such a run is still known."""
        ...

    async def delete(self, run: RunId, /) -> None:
        """Remove a run's streams. Idempotent. Raises OSError when something of them stays."""

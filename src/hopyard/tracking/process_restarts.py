"""Finds the restarts of replicas' processes within an attempt, in the events that the replicas recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hopyard.domain.ids import AttemptId
from hopyard.domain.restart_policy import MAX_RESTARTS, RestartMode
from hopyard.domain.run import RunEventKind, RunSpec
from hopyard.domain.stream_limits import STREAMS
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.json_lines import LineReader, to_int64
from hopyard.tracking.rollback import RestartRange, StreamSegment, VisibleStreams

Restarts = dict[tuple[AttemptId, int, str], tuple[RestartRange, ...]]
_READ_BYTES = 1024 * 1024
_REQUIRED_SUBSTRINGS = (f'"{RunEventKind.RESTARTED}"'.encode(),)


def may_restart(spec: RunSpec) -> bool:
    """Returns whether a replica's process may start again within an attempt."""
    return any(role.restart.mode is not RestartMode.NEVER for role in spec.roles)


async def with_restarts(streams: Streams, view: VisibleStreams, spec: RunSpec) -> VisibleStreams:
    """Returns the view with the restarts of the replicas that have a restart policy."""
    restarts: Restarts = {}
    for attempt in view.all_attempts:
        for rank in sorted(restartable_ranks(spec)):
            async for event in _restart_events(streams, attempt, rank):
                add_restart(restarts, attempt, rank, event)
    return replace(view, restarts=restarts)


def restartable_ranks(spec: RunSpec) -> frozenset[int]:
    """Returns the ranks of replicas that may have a restart policy."""
    return frozenset(
        rank
        for rank, role in enumerate(role for role in spec.roles for _ in range(role.replicas))
        # an elastic gang may have had fewer replicas, so its ranks may belong to other roles
        if spec.is_elastic or role.restart.mode is not RestartMode.NEVER
    )


def add_restart(restarts: Restarts, attempt: AttemptId, rank: int, event: Mapping[str, Any]) -> None:
    """Adds the cuts of another restart of a replica."""
    for stream, cut in restart_cuts(event):
        earlier = restarts.get((attempt, rank, stream), ())
        if len(earlier) < MAX_RESTARTS:
            restarts[attempt, rank, stream] = (*_before(earlier, cut), cut)


def restart_cuts(event: Mapping[str, Any]) -> Iterator[tuple[str, RestartRange]]:
    """Yields each stream of the replica with its cut, for the event of a restart."""
    ends, begins = event.get("ends"), event.get("begins")
    for stream, value in ends.items() if isinstance(ends, dict) else ():
        end = to_int64(value)
        begin = to_int64(begins.get(stream, end)) if isinstance(begins, dict) else end
        if stream in STREAMS and end is not None and begin is not None and end >= 0:
            yield stream, RestartRange(min(max(begin, 0), end), end)


def _before(cuts: tuple[RestartRange, ...], later: RestartRange) -> Iterator[RestartRange]:
    """Yields the earlier cuts. One that a later cut contains is hidden with its restart."""
    return (cut for cut in cuts if cut.end <= later.begin or later.begin == later.end)


async def _restart_events(
    streams: Streams, attempt: AttemptId, rank: int
) -> AsyncIterator[Mapping[str, Any]]:
    lines, position = LineReader(_REQUIRED_SUBSTRINGS), 0
    while data := await streams.read(StreamKey(attempt, rank, "events"), position, _READ_BYTES):
        position += len(data)
        for event in lines.feed(data):
            if event.get("kind") == RunEventKind.RESTARTED:
                yield event


async def read_spans(
    streams: Streams, key: StreamKey, view: VisibleStreams, *, block_bytes: int
) -> AsyncIterator[tuple[StreamSegment, bytes]]:
    """Yields the stream up to its visible length, in blocks with their spans. Only the first block of a span
    is that of a restart."""
    for span in view.spans_of(key.attempt, key.rank, key.name):
        offset, rest = span.begin, span
        while span.end is None or offset < span.end:
            size = block_bytes if span.end is None else min(block_bytes, span.end - offset)
            data = await streams.read(key, offset, size)
            if not data:
                break
            yield rest, data
            offset, rest = offset + len(data), replace(span, is_restart=False)

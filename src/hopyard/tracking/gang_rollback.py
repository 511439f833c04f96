"""Finds the stream offsets of a gang's other ranks at a checkpoint that one rank saved, so that all ranks
roll back together.

Each rank records its own offsets in its events when it reaches the turn of the checkpoint, possibly earlier
or later than the saving rank. A rank that never does, such as a script without `hop.loop`, is cut at the
offsets that the saving rank observed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hopyard.domain.ids import AttemptId
from hopyard.domain.run import RunEventKind
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.json_lines import LineReader, to_int64
from hopyard.tracking.rollback import VisibleStreams

_READ_BYTES = 1024 * 1024
_EVENT_KINDS = ("checkpoint", "turn")
_REQUIRED_SUBSTRINGS = tuple(f'"{kind}"'.encode() for kind in (*_EVENT_KINDS, RunEventKind.RESTARTED))
_RANK_DIGITS = 6
Offsets = Mapping[str, int]


@dataclass(slots=True)
class _RankOffsets:
    """The offsets that one rank recorded in one attempt, by step. own: of its own streams. peers: of the
    streams of other ranks, as it observed them."""

    own: dict[int, Offsets] = field(default_factory=dict)
    peers: dict[int, Mapping[int, Offsets]] = field(default_factory=dict)

    def apply(self, event: Mapping[str, Any]) -> None:
        step, kind = to_int64(event.get("step")), event.get("kind")
        if step is not None and kind == RunEventKind.RESTARTED:  # the next process repeats the later steps
            for offsets in (self.own, self.peers):
                for later in [each for each in offsets if each > step]:
                    del offsets[later]
            return
        if step is None or kind not in _EVENT_KINDS:
            return
        self.own.setdefault(step, _parse_offsets(event.get("offsets")))
        peer_values = event.get("peers")
        if isinstance(peer_values, dict):
            self.peers.setdefault(
                step,
                {
                    int(rank): _parse_offsets(offsets)
                    for rank, offsets in peer_values.items()
                    if rank.isdecimal() and len(rank) <= _RANK_DIGITS
                },
            )


async def cut_all_ranks(streams: Streams, visible_streams: VisibleStreams, *, size: int) -> VisibleStreams:
    """Returns the view with visible lengths for all of `size` ranks. Before, it has lengths only for the
    ranks that saved the checkpoints."""
    visible_lengths, known_ranks = (
        dict(visible_streams.visible_lengths),
        {key[:2] for key in visible_streams.visible_lengths},
    )
    for attempt, (saving_rank, step) in visible_streams.resume_points.items():
        saver_offsets = await _read_offsets(streams, attempt, saving_rank)
        for rank in range(size):
            if rank == saving_rank or (attempt, rank) in known_ranks:
                continue
            recorded = await _read_offsets(streams, attempt, rank)
            # A rank that records turns but did not reach this one has no output that will be repeated.
            offsets = (
                recorded.own.get(step, {})
                if recorded.own
                else saver_offsets.peers.get(step, {}).get(rank, {})
            )
            visible_lengths.update({(attempt, rank, stream): offset for stream, offset in offsets.items()})
    return replace(visible_streams, visible_lengths=visible_lengths)


async def _read_offsets(streams: Streams, attempt: AttemptId, rank: int) -> _RankOffsets:
    recorded, lines, position = _RankOffsets(), LineReader(_REQUIRED_SUBSTRINGS), 0
    key = StreamKey(attempt, rank, "events")
    length = (await streams.lengths(attempt, rank)).get("events", 0)
    while position < length and (
        data := await streams.read(key, position, min(_READ_BYTES, length - position))
    ):
        position += len(data)
        for event in lines.feed(data):
            recorded.apply(event)
    return recorded


def _parse_offsets(value: object) -> Offsets:
    return dict(_valid_offsets(value)) if isinstance(value, dict) else {}


def _valid_offsets(values: Mapping[Any, object]) -> Iterator[tuple[str, int]]:
    for stream, offset in values.items():
        number = to_int64(offset)
        if isinstance(stream, str) and number is not None and number >= 0:
            yield stream, number

"""Where the streams of a gang's other ranks stood at a checkpoint that one of them saved, so that all roll
back together.

Each rank notes its own offsets in its events as it comes to the turn of the checkpoint: it may come there
earlier or later than the rank that saves. A rank that never does, such as a script without `hop.loop`, is cut
where the saving rank saw its streams end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hopyard.domain.ids import AttemptId
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.json_lines import LineReader, to_int64
from hopyard.tracking.rollback import VisibleStreams

_READ_BYTES = 1024 * 1024
_EVENT_KINDS = ("checkpoint", "turn")
_REQUIRED_SUBSTRINGS = tuple(f'"{kind}"'.encode() for kind in _EVENT_KINDS)
_RANK_DIGITS = 6
Offsets = Mapping[str, int]


@dataclass(slots=True)
class _RankOffsets:
    """What one rank noted in one attempt. own: its own offsets by step.
    others: by step, those that it saw of other ranks."""

    own: dict[int, Offsets] = field(default_factory=dict)
    others: dict[int, Mapping[int, Offsets]] = field(default_factory=dict)

    def apply(self, event: Mapping[str, Any]) -> None:
        step, kind = to_int64(event.get("step")), event.get("kind")
        if step is None or kind not in _EVENT_KINDS:
            return
        self.own.setdefault(step, _parse_offsets(event.get("offsets")))
        peers = event.get("peers")
        if isinstance(peers, dict):
            self.others.setdefault(
                step,
                {
                    int(rank): _parse_offsets(said)
                    for rank, said in peers.items()
                    if rank.isdecimal() and len(rank) <= _RANK_DIGITS
                },
            )


async def cut_all_ranks(streams: Streams, visible_streams: VisibleStreams, *, size: int) -> VisibleStreams:
    """The view with cuts for all of `size` ranks, where it has them only for those that saved the
    checkpoints."""
    cuts, known = dict(visible_streams.visible_lengths), {key[:2] for key in visible_streams.visible_lengths}
    for attempt, (saver, step) in visible_streams.resume_points.items():
        saved = await _read_offsets(streams, attempt, saver)
        for rank in range(size):
            if rank == saver or (attempt, rank) in known:
                continue
            noted = await _read_offsets(streams, attempt, rank)
            # One that notes turns, and did not come to this one, has said nothing that is said again.
            offsets = noted.own.get(step, {}) if noted.own else saved.others.get(step, {}).get(rank, {})
            cuts.update({(attempt, rank, stream): offset for stream, offset in offsets.items()})
    return replace(visible_streams, visible_lengths=cuts)


async def _read_offsets(streams: Streams, attempt: AttemptId, rank: int) -> _RankOffsets:
    noted, lines, at = _RankOffsets(), LineReader(_REQUIRED_SUBSTRINGS), 0
    key = StreamKey(attempt, rank, "events")
    length = (await streams.lengths(attempt, rank)).get("events", 0)
    while at < length and (data := await streams.read(key, at, min(_READ_BYTES, length - at))):
        at += len(data)
        for event in lines.feed(data):
            noted.apply(event)
    return noted


def _parse_offsets(value: object) -> Offsets:
    return dict(_valid_offsets(value)) if isinstance(value, dict) else {}


def _valid_offsets(values: Mapping[Any, object]) -> Iterator[tuple[str, int]]:
    for stream, offset in values.items():
        number = to_int64(offset)
        if isinstance(stream, str) and number is not None and number >= 0:
            yield stream, number

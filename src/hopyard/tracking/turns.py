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
from hopyard.tracking.lines import LineReader, whole
from hopyard.tracking.view import View

_PIECE_BYTES = 1024 * 1024
_KINDS = ("checkpoint", "turn")
_NEEDED = tuple(f'"{kind}"'.encode() for kind in _KINDS)
_RANK_DIGITS = 6
Offsets = Mapping[str, int]


@dataclass(slots=True)
class _Noted:
    """What one rank noted in one attempt. at: its own offsets by step.
    others: by step, those that it saw of other ranks."""

    at: dict[int, Offsets] = field(default_factory=dict)
    others: dict[int, Mapping[int, Offsets]] = field(default_factory=dict)

    def take(self, event: Mapping[str, Any]) -> None:
        step, kind = whole(event.get("step")), event.get("kind")
        if step is None or kind not in _KINDS:
            return
        self.at.setdefault(step, _offsets(event.get("offsets")))
        peers = event.get("peers")
        if isinstance(peers, dict):
            self.others.setdefault(
                step,
                {
                    int(rank): _offsets(said)
                    for rank, said in peers.items()
                    if rank.isdecimal() and len(rank) <= _RANK_DIGITS
                },
            )


async def cut_together(streams: Streams, view: View, *, size: int) -> View:
    """The view with cuts for all of `size` ranks, where it has them only for those that saved the
    checkpoints."""
    cuts, known = dict(view.cuts), {key[:2] for key in view.cuts}
    for attempt, (saver, step) in view.turned.items():
        saved = await _read(streams, attempt, saver)
        for rank in range(size):
            if rank == saver or (attempt, rank) in known:
                continue
            noted = await _read(streams, attempt, rank)
            # One that notes turns, and did not come to this one, has said nothing that is said again.
            offsets = noted.at.get(step, {}) if noted.at else saved.others.get(step, {}).get(rank, {})
            cuts.update({(attempt, rank, stream): offset for stream, offset in offsets.items()})
    return replace(view, cuts=cuts)


async def _read(streams: Streams, attempt: AttemptId, rank: int) -> _Noted:
    noted, lines, at = _Noted(), LineReader(_NEEDED), 0
    key = StreamKey(attempt, rank, "events")
    length = (await streams.lengths(attempt, rank)).get("events", 0)
    while at < length and (data := await streams.read(key, at, min(_PIECE_BYTES, length - at))):
        at += len(data)
        for event in lines.feed(data):
            noted.take(event)
    return noted


def _offsets(said: object) -> Offsets:
    return dict(_whole_offsets(said)) if isinstance(said, dict) else {}


def _whole_offsets(said: Mapping[Any, object]) -> Iterator[tuple[str, int]]:
    for stream, offset in said.items():
        number = whole(offset)
        if isinstance(stream, str) and number is not None and number >= 0:
            yield stream, number

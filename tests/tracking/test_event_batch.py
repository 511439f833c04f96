"""Server-sent events of a batch."""

from __future__ import annotations

from datetime import UTC, datetime

from hopyard.domain.change import Change, ChangeKind, Position
from hopyard.tracking.event_batch import EventBatch, Sent, frame, heartbeat_frame
from hopyard.tracking.event_filter import Event

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def sent(seq: int, data: bytes) -> Sent:
    change = Change(seq, 7, NOW, ChangeKind.RUN, "a", "x")
    return Sent(Position(seq, 1, 7), Event(change, data, "run"))


def test_short_events_share_a_chunk_and_long_ones_have_their_own() -> None:
    long = b"x" * 40_000
    batch = EventBatch([sent(1, b"{}"), sent(2, b"{}"), sent(3, long), sent(4, b"{}")])
    short = [b"id: %d-1-7\ndata: {}\n\n" % seq for seq in (1, 2, 4)]
    assert list(batch.chunks()) == [short[0] + short[1], b"id: 3-1-7\ndata: " + long + b"\n\n", short[2]]
    assert batch.chunks() is batch.chunks()


def test_frames_carry_the_position() -> None:
    position = Position(5, 4, 3)
    assert frame(position, b"{}") == b"id: 5-4-3\ndata: {}\n\n"
    assert heartbeat_frame(position) == b"event: heartbeat\nid: 5-4-3\ndata: {}\n\n"

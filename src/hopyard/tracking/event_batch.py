"""What a client gets next of the events, encoded once for all clients that get the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hopyard.domain.change import Position
from hopyard.tracking.event_filter import Event

_CHUNK_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class Sent:
    """One item. event: None for a heartbeat. is_reset: changes may be missing, so the client must list
    everything again."""

    position: Position
    event: Event | None = None
    is_reset: bool = False


class EventBatch:
    """Several items. Clients with equal filters at the same position share a batch with its bytes."""

    __slots__ = ("_chunks", "items")

    def __init__(self, items: Sequence[Sent]) -> None:
        self.items = tuple(items)
        self._chunks: tuple[bytes, ...] | None = None

    def __iter__(self) -> Iterator[Sent]:
        return iter(self.items)

    def chunks(self) -> Sequence[bytes]:
        """Returns the items as server-sent events: several whole events in each chunk, as long as they are
        short. All items have an event."""
        if self._chunks is None:
            self._chunks = tuple(_join(_encode(item) for item in self.items))
        return self._chunks


def frame(position: Position, data: bytes) -> bytes:
    """Returns one server-sent event. data: without line breaks."""
    return b"id: %b\ndata: %b\n\n" % (position.cursor().encode(), data)


def heartbeat_frame(position: Position) -> bytes:
    """Returns an event with a name, which changes do not have. Its id advances the client's position.

    It has data, since a browser passes on no event without data. By its absence, a page notices that the
    connection is dead."""
    return b"event: heartbeat\nid: %b\ndata: {}\n\n" % position.cursor().encode()


def _encode(item: Sent) -> bytes:
    assert item.event is not None
    return frame(item.position, item.event.data)


def _join(frames: Iterator[bytes]) -> Iterator[bytes]:
    together, size = list[bytes](), 0
    for each in frames:
        if together and size + len(each) > _CHUNK_BYTES:
            yield b"".join(together)
            together, size = [], 0
        together.append(each)
        size += len(each)
    yield b"".join(together)

"""The wire format of protocol buffers, limited to the needs of event files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

Buffer = bytes | memoryview


class MalformedMessage(ValueError):
    """The bytes are not a message."""


class WireType(IntEnum):
    """The wire types of fields."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


@dataclass(slots=True)
class FieldLimit:
    """How many fields of one record may still be read. A record of millions of tiny fields would take
    minutes."""

    remaining: int = 200_000

    def take(self) -> None:
        """Raises MalformedMessage when the budget is used up."""
        self.remaining -= 1
        if self.remaining < 0:
            raise MalformedMessage("it has too many fields")


def iterate_fields(
    data: Buffer, budget: FieldLimit | None = None
) -> Iterator[tuple[int, WireType, int | Buffer]]:
    """Yields number, wire type and value of each field: an int for VARINT, a part of `data` for the others.
    Raises MalformedMessage."""
    offset, end = 0, len(data)
    while offset < end:
        if budget is not None:
            budget.take()
        key, offset = _varint(data, offset)
        number, kind = key >> 3, key & 7
        if kind == WireType.VARINT:
            integer, offset = _varint(data, offset)
            yield number, WireType.VARINT, integer
            continue
        if kind == WireType.FIXED64:
            size = 8
        elif kind == WireType.FIXED32:
            size = 4
        elif kind == WireType.BYTES:
            size, offset = _varint(data, offset)
        else:
            raise MalformedMessage(f"wire type {kind}")
        if offset + size > end:
            raise MalformedMessage("a field is truncated")
        yield number, WireType(kind), data[offset : offset + size]
        offset += size


def _varint(data: Buffer, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if offset >= len(data) or shift > 63:
            raise MalformedMessage("a number is truncated")
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        offset += 1
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, offset
        shift += 7


def decode_text(data: Buffer) -> str:
    return bytes(data).decode(errors="replace")


def decode_varints(value: int | Buffer, wire: WireType) -> int | None:
    """Returns one int, plain or in a packed list of length one."""
    if isinstance(value, int):
        return value
    if wire is not WireType.BYTES or not value:
        return None
    integer, end = _varint(value, 0)
    return integer if end == len(value) else None

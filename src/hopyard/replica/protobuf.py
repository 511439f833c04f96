"""The wire format of protocol buffers, limited to the needs of event files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum


class MalformedMessage(ValueError):
    """The bytes are not a message."""


class WireType(IntEnum):
    """The wire types of fields."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


def iterate_fields(data: bytes) -> Iterator[tuple[int, WireType, int | bytes]]:
    """Yields number, wire type and value of each field: an int for VARINT, bytes for the others. Raises
    MalformedMessage."""
    offset, end = 0, len(data)
    while offset < end:
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


def _varint(data: bytes, offset: int) -> tuple[int, int]:
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


def decode_text(data: bytes) -> str:
    return data.decode(errors="replace")


# Number types of TensorProto (tensorflow/core/framework/types.proto): how `tensor_content` is packed.
_FORMATS = {
    1: "<f",
    2: "<d",
    3: "<i",
    4: "<B",
    5: "<h",
    6: "<b",
    9: "<q",
    10: "<?",
    14: "<H",
    17: "<H",
    19: "<e",
    22: "<I",
    23: "<Q",
}
# the fields float_val; double_val; int_val, int64_val, bool_val
_FLOATS, _DOUBLES, _VARINTS = 5, 6, frozenset({7, 10, 11, 16, 17})
_HALVES = 13  # the field half_val: the bits of a number of 16 bits
_BFLOAT16, _HALF = 14, 19
_SIGNED = frozenset({3, 5, 6, 9})


def scalar_of_tensor(data: bytes) -> float | None:
    """Returns the number in a `TensorProto` of one element; None for more elements and for a value that is
    not a number. Raises MalformedMessage."""
    kind, elements, content = 0, 1, b""
    floating: float | None = None
    integer: int | None = None
    for number, wire, value in iterate_fields(data):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and isinstance(value, bytes):
            elements = _elements(value)
        elif number == 4 and isinstance(value, bytes):
            content = value
        elif number in (_FLOATS, _DOUBLES):
            floating = _packed(value, "<f" if number == _FLOATS else "<d")
        elif number in _VARINTS or number == _HALVES:
            integer = _decode_varints(value, wire)
    if elements != 1 or kind not in _FORMATS:
        return None
    if content:
        if len(content) != struct.calcsize(_FORMATS[kind]):
            return None
        number_value = struct.unpack(_FORMATS[kind], content)[0]
        return _decode_bfloat16(number_value) if kind == _BFLOAT16 else float(number_value)
    if kind in (_BFLOAT16, _HALF):
        return None if integer is None or integer > 0xFFFF else _decode_half(kind, integer)
    if integer is not None:
        return float(integer - 2**64 if kind in _SIGNED and integer >= 2**63 else integer)
    return floating


def _decode_half(kind: int, bits: int) -> float:
    if kind == _BFLOAT16:
        return _decode_bfloat16(bits)
    return float(struct.unpack("<e", struct.pack("<H", bits))[0])


def _decode_bfloat16(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def _elements(shape: bytes) -> int:
    """Returns how many elements a `TensorShapeProto` describes."""
    count = 1
    for number, _, value in iterate_fields(shape):
        if number == 2 and isinstance(value, bytes):
            count *= next(
                (size for inner, _, size in iterate_fields(value) if inner == 1 and isinstance(size, int)), 0
            )
    return count


def _packed(value: int | bytes, form: str) -> float | None:
    if not isinstance(value, bytes) or len(value) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, value)[0])


def _decode_varints(value: int | bytes, wire: WireType) -> int | None:
    """Returns one int, plain or in a packed list of length one."""
    if isinstance(value, int):
        return value
    if wire is not WireType.BYTES or not value:
        return None
    integer, end = _varint(value, 0)
    return integer if end == len(value) else None

"""The wire format of protocol buffers, as far as event files need it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum


class MalformedMessage(ValueError):
    """Bytes that are no message."""


class WireType(IntEnum):
    """Wire types."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


def iterate_fields(data: bytes) -> Iterator[tuple[int, WireType, int | bytes]]:
    """Number, wire type and value of each field: an int for VARINT, bytes for the others. Raises Damaged."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == WireType.VARINT:
            whole, at = _varint(data, at)
            yield number, WireType.VARINT, whole
            continue
        if kind == WireType.FIXED64:
            size = 8
        elif kind == WireType.FIXED32:
            size = 4
        elif kind == WireType.BYTES:
            size, at = _varint(data, at)
        else:
            raise MalformedMessage(f"wire type {kind}")
        if at + size > end:
            raise MalformedMessage("a field is cut off")
        yield number, WireType(kind), data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise MalformedMessage("a number is cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
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
    17: "<H",
    19: "<e",
    22: "<I",
    23: "<Q",
}
# the fields float_val; double_val; int_val, int64_val, bool_val
_FLOATS, _DOUBLES, _VARINTS = 5, 6, frozenset({7, 10, 11})
_SIGNED = frozenset({3, 5, 6, 9})


def scalar_of_tensor(data: bytes) -> float | None:
    """The number in a `TensorProto` of one element; None for more elements and for what is no number.
    Raises Damaged."""
    kind, elements, content = 0, 1, b""
    listed: float | None = None
    whole: int | None = None
    for number, wire, value in iterate_fields(data):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and isinstance(value, bytes):
            elements = _elements(value)
        elif number == 4 and isinstance(value, bytes):
            content = value
        elif number in (_FLOATS, _DOUBLES):
            listed = _packed(value, "<f" if number == _FLOATS else "<d")
        elif number in _VARINTS:
            whole = _decode_varints(value, wire)
    if elements != 1 or kind not in _FORMATS:
        return None
    if content:
        if len(content) != struct.calcsize(_FORMATS[kind]):
            return None
        return float(struct.unpack(_FORMATS[kind], content)[0])
    if whole is not None:
        return float(whole - 2**64 if kind in _SIGNED and whole >= 2**63 else whole)
    return listed


def _elements(shape: bytes) -> int:
    """How many elements a `TensorShapeProto` stands for."""
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
    """One int, plain or in a packed list of one."""
    if isinstance(value, int):
        return value
    if wire is not WireType.BYTES or not value:
        return None
    found, at = _varint(value, 0)
    return found if at == len(value) else None

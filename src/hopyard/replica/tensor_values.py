"""Numbers and texts in the tensors of event files (tensorflow/core/framework/tensor.proto)."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from hopyard.replica.protobuf import (
    Buffer,
    FieldLimit,
    MalformedMessage,
    decode_varints,
    iterate_fields,
)

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
_STRING = 7
_STRINGS = 8  # the field string_val
_MAX_DIMENSIONS = 254  # as in TensorFlow
_MAX_ELEMENTS = 300_000  # of a list of numbers


class TensorTexts(NamedTuple):
    """The elements of a tensor of strings, in row-major order. shape: () for one element."""

    shape: tuple[int, ...]
    texts: list[Buffer]


class TensorNumbers(NamedTuple):
    """The elements of a tensor of numbers, in row-major order. shape: () for one element."""

    shape: tuple[int, ...]
    numbers: tuple[float, ...]


def scalar_of_tensor(data: Buffer, budget: FieldLimit) -> float | None:
    """Returns the number in a `TensorProto` of one element; None for more elements and for a value that is
    not a number. Raises MalformedMessage."""
    kind, elements = 0, 1
    content: Buffer = b""
    floating: float | None = None
    integer: int | None = None
    for number, wire, value in iterate_fields(data, budget):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and not isinstance(value, int):
            elements = math.prod(_dimensions(value, budget))
        elif number == 4 and not isinstance(value, int):
            content = value
        elif number in (_FLOATS, _DOUBLES):
            floating = _packed(value, "<f" if number == _FLOATS else "<d")
        elif number in _VARINTS or number == _HALVES:
            integer = decode_varints(value, wire)
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


def _dimensions(shape: Buffer, budget: FieldLimit) -> tuple[int, ...]:
    """Returns the dimensions of a `TensorShapeProto`."""
    sizes: list[int] = []
    for number, _, value in iterate_fields(shape, budget):
        if number == 2 and not isinstance(value, int):
            fields = iterate_fields(value, budget)
            sizes.append(next((size for inner, _, size in fields if inner == 1 and isinstance(size, int)), 0))
    if len(sizes) > _MAX_DIMENSIONS:
        raise MalformedMessage("a tensor has too many dimensions")
    return tuple(sizes)


def _packed(value: int | Buffer, form: str) -> float | None:
    if isinstance(value, int) or len(value) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, value)[0])


def texts_of_tensor(data: Buffer, budget: FieldLimit) -> TensorTexts | None:
    """Returns the elements of a tensor of strings; None for another tensor, and for one that stores equal
    elements once: a few bytes would become millions. Raises MalformedMessage."""
    kind, shape, texts = 0, tuple[int, ...](), list[Buffer]()
    for number, _, value in iterate_fields(data, budget):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and not isinstance(value, int):
            shape = _dimensions(value, budget)
        elif number == _STRINGS and not isinstance(value, int):
            texts.append(value)
    return TensorTexts(shape, texts) if kind == _STRING and len(texts) == math.prod(shape) else None


def numbers_of_tensor(data: Buffer, budget: FieldLimit) -> TensorNumbers | None:
    """Returns the elements of a tensor of floats of 32 or 64 bits; None for another tensor. Raises
    MalformedMessage."""
    kind, shape, parts = 0, tuple[int, ...](), list[Buffer]()
    for number, _, value in iterate_fields(data, budget):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and not isinstance(value, int):
            shape = _dimensions(value, budget)
        elif number in (4, _FLOATS, _DOUBLES) and not isinstance(value, int):
            parts.append(value)
    count, content = math.prod(shape), b"".join(parts)
    form = {1: "f", 2: "d"}.get(kind)
    if form is None:
        return None
    if count > _MAX_ELEMENTS or len(content) != struct.calcsize(f"<{form}") * count:
        return None
    return TensorNumbers(shape, struct.unpack(f"<{count}{form}", content))

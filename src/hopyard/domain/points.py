"""The metric stream: how a point is written as bytes.

A stream is a sequence of records, little-endian, no alignment:

    definition  u8 = 1, u64 series, u16 length, `length` bytes of UTF-8 name
    point       u8 = 2, u64 series, i64 step, f64 unix time in seconds, f64 value

`series` is a 64-bit hash of the name, so several processes may append to one stream without agreeing on numbers;
a definition comes before the first point of its series in each process and may come again.
Standard library only: this is imported by users' processes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

from hopyard.errors import IntegrityError

DEFINITION, POINT = 1, 2
NO_STEP = -(2**63)  # a point that was logged without a step; the reader counts for it
_POINT = struct.Struct("<BQqdd")
_DEFINITION = struct.Struct("<BQH")
POINT_BYTES = _POINT.size
pack_point = _POINT.pack  # pack_point(POINT, series, step, time, value)


class Point(NamedTuple):
    series: int
    step: int
    time: float
    value: float


def series_of(name: str) -> int:
    """The stable 64-bit number of a metric's name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def pack_definition(name: str) -> bytes:
    data = name.encode()
    if not 0 < len(data) <= 1024:
        raise ValueError("the name of a metric has 1 to 1024 bytes")
    return _DEFINITION.pack(DEFINITION, series_of(name), len(data)) + data


def read_records(data: bytes | memoryview, names: dict[int, str]) -> Iterator[Point | int]:
    """Yield the points in `data`, which begins at a record's start; `names` collects the definitions met.

    The last item yielded is an int: how many bytes were consumed. A record that is cut off at the end is left for later.
    Raises IntegrityError at a byte that begins no record.
    """
    at, end = 0, len(data)
    unpack = _POINT.unpack_from
    while at < end:
        kind = data[at]
        if kind == POINT:
            if end - at < POINT_BYTES:
                break
            _, series, step, time, value = unpack(data, at)
            yield Point(series, step, time, value)
            at += POINT_BYTES
        elif kind == DEFINITION:
            if end - at < _DEFINITION.size:
                break
            _, series, length = _DEFINITION.unpack_from(data, at)
            if end - at < _DEFINITION.size + length:
                break
            at += _DEFINITION.size
            names[series] = bytes(data[at : at + length]).decode(errors="replace")
            at += length
        else:
            raise IntegrityError(f"metric stream: byte {at} begins no record")
    yield at

"""The metric stream: how a point is written as bytes.

A stream is a sequence of records, little-endian, no alignment:

    definition  u8 = 1, u64 series, u16 length, `length` bytes of UTF-8 name
    point       u8 = 2, u64 series, i64 step, f64 unix time in seconds, f64 value

`series` is a 64-bit hash of the name, so several processes may append to one stream without agreeing on
numbers; a definition comes before the first point of its series in each process and may come again. Standard
library only: this is imported by users' processes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

from hopyard.errors import IntegrityError

DEFINITION, POINT = 1, 2
NO_STEP = -(2**63)  # a point that was logged without a step; the reader counts for it
_MAX_STEP = 2**63 - 1
_POINT = struct.Struct("<BQqdd")
_DEFINITION = struct.Struct("<BQH")
POINT_BYTES = _POINT.size
_SCAN_RECORDS = 4096  # records looked at together for their kind
MAX_NAME_BYTES = 1024
MAX_RECORD_BYTES = _DEFINITION.size + MAX_NAME_BYTES
pack_point = _POINT.pack  # pack_point(POINT, series, step, time, value)


class Point(NamedTuple):
    series: int
    step: int
    time: float
    value: float


def series_id(name: str) -> int:
    """The stable 64-bit number of a metric's name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def pack_definition(name: str) -> bytes:
    data = name.encode()
    if not 0 < len(data) <= MAX_NAME_BYTES:
        raise ValueError(f"the name of a metric has 1 to {MAX_NAME_BYTES} bytes")
    return _DEFINITION.pack(DEFINITION, series_id(name), len(data)) + data


def read_records(data: bytes | memoryview, names: dict[int, str]) -> Iterator[Point | int]:
    """Yield the points in `data`, which begins at a record's start; `names` collects the definitions met.

    The last item yielded is an int: how many bytes were consumed. A record that is cut off at the end is left
    for later. Raises IntegrityError at a byte that begins no record.
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
        else:
            used = _read_definition(data, at, names)
            if not used:
                break
            at += used
    yield at


def read_point_blocks(
    data: bytes | memoryview, names: dict[int, str]
) -> Iterator[Iterator[tuple[int, int, int, float, float]] | int]:
    """As `read_records`, for many points: yields iterators over stretches of neighbouring points as plain
    tuples (kind, series, step, time, value), and last the number of bytes consumed. Five times as fast.
    Raises the same."""
    view = memoryview(data)
    at = 0
    while at < len(view):
        if view[at] == POINT:
            count = _count_points(view, at)
            if not count:
                break
            yield _POINT.iter_unpack(view[at : at + count * POINT_BYTES])
            at += count * POINT_BYTES
            continue
        used = _read_definition(view, at, names)
        if not used:
            break
        at += used
    yield at


def complete_bytes(data: bytes) -> int:
    """How many bytes at the beginning of `data`, which begins at a record's start, are whole records: what
    comes then is cut off, or none."""
    view, at = memoryview(data), 0
    try:
        while at < len(view):
            used = (
                _count_points(view, at) * POINT_BYTES if view[at] == POINT else _read_definition(view, at, {})
            )
            if not used:
                break
            at += used
    except IntegrityError:
        pass
    return at


def _read_definition(data: bytes | memoryview, at: int, names: dict[int, str]) -> int:
    """The size of the definition at `at`, 0 when it is cut off.
    Raises IntegrityError when none begins there."""
    if data[at] != DEFINITION:
        raise IntegrityError(f"metric stream: byte {at} begins no record")
    if len(data) - at < _DEFINITION.size:
        return 0
    _, series, length = _DEFINITION.unpack_from(data, at)
    if not 0 < length <= MAX_NAME_BYTES:  # else damage would look like a record that is still to come
        raise IntegrityError(f"metric stream: byte {at} begins a name of {length} bytes")
    end = at + _DEFINITION.size + length
    if len(data) < end:
        return 0
    names[series] = bytes(data[at + _DEFINITION.size : end]).decode(errors="replace")
    return int(end - at)


def _count_points(view: memoryview, at: int) -> int:
    """How many whole points stand one after another from `at`."""
    found = 0
    whole = (len(view) - at) // POINT_BYTES
    while found < whole:
        window = min(_SCAN_RECORDS, whole - found)
        begin = at + found * POINT_BYTES
        kinds = bytes(view[begin : begin + window * POINT_BYTES : POINT_BYTES])
        same = window - len(kinds.lstrip(b"\x02"))
        found += same
        if same < window:
            break
    return found


def step_after(step: int) -> int:
    """Returns the step of a point that is logged without one, where `step` is the one before it."""
    return min(step + 1, _MAX_STEP)

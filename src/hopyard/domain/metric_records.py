"""The metric stream: the binary format of points.

A stream is a sequence of records, little-endian, no alignment:

    definition  u8 = 1, u64 series, u16 length, `length` bytes of UTF-8 name
    point       u8 = 2, u64 series, i64 step, f64 unix time in seconds, f64 value
    purge       u8 = 3, u64 series, i64 step: hides the earlier points at this step and after it

`series` is a 64-bit hash of the name, so several processes can append to one stream without coordination. In
each process, a definition precedes the first point of its series, and may be repeated. Standard library only:
users' processes import this module.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hopyard.errors import IntegrityError

DEFINITION, POINT, PURGE = 1, 2, 3
NO_STEP = -(2**63)  # a point that was logged without a step; the reader assigns one
MAX_STEP = 2**63 - 1
_POINT = struct.Struct("<BQqdd")
_DEFINITION = struct.Struct("<BQH")
_PURGE = struct.Struct("<BQq")
POINT_BYTES = _POINT.size
_SCAN_RECORDS = 4096  # records scanned together for their kind
_MIN_SCAN_RECORDS = 16  # of a new series each point follows its definition
MAX_NAME_BYTES = 1024
MAX_RECORD_BYTES = _DEFINITION.size + MAX_NAME_BYTES
pack_point = _POINT.pack  # pack_point(POINT, series, step, time, value)


class Point(NamedTuple):
    series: int
    step: int
    time: float
    value: float


class Purge(NamedTuple):
    """A writer that continues at an earlier step replaces the points from there on."""

    series: int
    step: int


def series_id(name: str) -> int:
    """Returns the stable 64-bit number of a metric's name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def pack_definition(name: str) -> bytes:
    data = name.encode()
    if not 0 < len(data) <= MAX_NAME_BYTES:
        raise ValueError(f"the name of a metric must have 1 to {MAX_NAME_BYTES} bytes")
    return _DEFINITION.pack(DEFINITION, series_id(name), len(data)) + data


def pack_purge(series: int, step: int) -> bytes:
    return _PURGE.pack(PURGE, series, step)


def read_records(data: bytes | memoryview, names: dict[int, str]) -> Iterator[Point | Purge | int]:
    """Yields the points and purges in `data`, which starts at a record; `names` collects the definitions.

    The last item is an int: the number of consumed bytes. A truncated record at the end is not consumed.
    Raises IntegrityError at a byte that starts no record.
    """
    offset, end = 0, len(data)
    unpack = _POINT.unpack_from
    while offset < end:
        kind = data[offset]
        if kind == POINT:
            if end - offset < POINT_BYTES:
                break
            _, series, step, time, value = unpack(data, offset)
            yield Point(series, step, time, value)
            offset += POINT_BYTES
        elif kind == PURGE:
            if end - offset < _PURGE.size:
                break
            yield Purge(*_PURGE.unpack_from(data, offset)[1:])
            offset += _PURGE.size
        else:
            size = _read_definition(data, offset, names)
            if not size:
                break
            offset += size
    yield offset


def read_point_blocks(
    data: bytes | memoryview, names: dict[int, str], on_purge: Callable[[int, int], object] | None = None
) -> Iterator[Iterator[tuple[int, int, int, float, float]] | int]:
    """Yields points in blocks, as `read_records` but five times as fast.

    Yields iterators over runs of adjacent points as plain tuples (kind, series, step, time, value), and last
    the number of consumed bytes. on_purge: called with series and step of a purge, after the points before
    it were read. Raises the same errors.
    """
    for part in read_point_views(data, names, on_purge):
        yield part if isinstance(part, int) else unpack_points(part)


def read_point_views(
    data: bytes | memoryview, names: dict[int, str], on_purge: Callable[[int, int], object] | None = None
) -> Iterator[memoryview | int]:
    """As `read_point_blocks`, with the bytes of each block."""
    view = memoryview(data)
    offset = 0
    while offset < len(view):
        if view[offset] == POINT:
            count = _count_points(view, offset)
            if not count:
                break
            yield view[offset : offset + count * POINT_BYTES]
            offset += count * POINT_BYTES
            continue
        if view[offset] == PURGE:
            if len(view) - offset < _PURGE.size:
                break
            if on_purge is not None:
                on_purge(*_PURGE.unpack_from(view, offset)[1:])
            offset += _PURGE.size
            continue
        size = _read_definition(view, offset, names)
        if not size:
            break
        offset += size
    yield offset


def unpack_points(block: memoryview) -> Iterator[tuple[int, int, int, float, float]]:
    """Yields the points of a block of `read_point_views` as (kind, series, step, time, value)."""
    return _POINT.iter_unpack(block)


def complete_bytes(data: bytes) -> int:
    """Returns the number of bytes at the start of `data` that are complete records; the rest is truncated or
    no record. `data` starts at a record."""
    view, offset = memoryview(data), 0
    try:
        while offset < len(view):
            if view[offset] == PURGE:
                size = _PURGE.size if len(view) - offset >= _PURGE.size else 0
            elif view[offset] == POINT:
                size = _count_points(view, offset) * POINT_BYTES
            else:
                size = _read_definition(view, offset, {})
            if not size:
                break
            offset += size
    except IntegrityError:
        pass
    return offset


def _read_definition(data: bytes | memoryview, at: int, names: dict[int, str]) -> int:
    """Returns the size of the definition at `at` in bytes, 0 if it is truncated. Raises IntegrityError if no
    definition starts there."""
    if data[at] != DEFINITION:
        raise IntegrityError(f"metric stream: byte {at} starts no record")
    if len(data) - at < _DEFINITION.size:
        return 0
    _, series, length = _DEFINITION.unpack_from(data, at)
    # otherwise, damage would look like a record that is still incomplete
    if not 0 < length <= MAX_NAME_BYTES:
        raise IntegrityError(f"metric stream: byte {at} starts a name of {length} bytes")
    end = at + _DEFINITION.size + length
    if len(data) < end:
        return 0
    names[series] = bytes(data[at + _DEFINITION.size : end]).decode(errors="replace")
    return int(end - at)


def _count_points(view: memoryview, at: int) -> int:
    """Returns the number of complete points in a row from `at`."""
    count, scan = 0, _MIN_SCAN_RECORDS
    total = (len(view) - at) // POINT_BYTES
    while count < total:
        scanned = min(scan, total - count)
        scan = min(2 * scan, _SCAN_RECORDS)
        begin = at + count * POINT_BYTES
        kinds = bytes(view[begin : begin + scanned * POINT_BYTES : POINT_BYTES])
        matching = scanned - len(kinds.lstrip(b"\x02"))
        count += matching
        if matching < scanned:
            break
    return count


def step_after(step: int) -> int:
    """Returns the step of a point that is logged without one, where `step` is the one before it."""
    return min(step + 1, MAX_STEP)

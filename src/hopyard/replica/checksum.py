"""CRC-32C, masked as in TFRecords.

The standard library has no CRC-32C, and a byte loop in Python is slow. Many equal or long inputs are computed
side by side: one `bytes.translate` looks up the table for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

_POLYNOMIAL = 0x82F63B78
_MIN_LANES = 32  # fewer inputs are faster in the byte loop
_LANE_BYTES = 512  # a long input is divided into lanes of this length
_MAX_LANES = 4096  # more do not fit into the caches of a core
_INITIAL = 0xFFFFFFFF


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (_POLYNOMIAL if remainder & 1 else 0)
        table.append(remainder)
    return tuple(table)


_TABLE = _make_table()
# byte k of the table's entries, as translation tables
_PLANES = tuple(bytes(entry >> 8 * k & 0xFF for entry in _TABLE) for k in range(4))


def masked_crc(data: bytes | memoryview) -> int:
    """Returns the masked checksum of `data`."""
    if len(data) < _MIN_LANES * _LANE_BYTES:
        return _mask(_update(_INITIAL, data))
    end = len(data) // _LANE_BYTES * _LANE_BYTES
    tables = _shift_tables()
    crc = _INITIAL
    # the remainder of A followed by B is that of A shifted by the length of B, plus that of B
    for lane in _remainders(memoryview(data)[:end], _LANE_BYTES, 0):
        crc = (
            tables[0][crc & 0xFF]
            ^ tables[1][crc >> 8 & 0xFF]
            ^ tables[2][crc >> 16 & 0xFF]
            ^ tables[3][crc >> 24]
            ^ lane
        )
    return _mask(_update(crc, data[end:]))


def masked_crcs(records: Sequence[bytes]) -> list[int]:
    """Returns the masked checksum of each record; records of equal length are computed together."""
    checks = [0] * len(records)
    by_length: dict[int, list[int]] = {}
    for index, record in enumerate(records):
        by_length.setdefault(len(record), []).append(index)
    for length, indices in by_length.items():
        if len(indices) < _MIN_LANES or length == 0:
            for index in indices:
                checks[index] = masked_crc(records[index])
            continue
        remainders = _remainders(b"".join([records[index] for index in indices]), length, _INITIAL)
        for index, remainder in zip(indices, remainders, strict=True):
            checks[index] = _mask(remainder)
    return checks


def _mask(remainder: int) -> int:
    crc = remainder ^ _INITIAL
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _update(crc: int, data: bytes | memoryview) -> int:
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


def _remainders(joined: bytes | memoryview, length: int, initial: int) -> list[int]:
    """Returns the remainder of each piece of `length` bytes."""
    step = length * _MAX_LANES
    remainders: list[int] = []
    for begin in range(0, len(joined), step):
        remainders += _remainders_of_lanes(bytes(joined[begin : begin + step]), length, initial)
    return remainders


def _remainders_of_lanes(joined: bytes, length: int, initial: int) -> list[int]:
    """Plane k holds byte k of all remainders, as one large number, so that one XOR combines all lanes."""
    count = len(joined) // length
    first, second, third, fourth = (
        int.from_bytes(bytes([initial >> 8 * k & 0xFF]) * count, "little") for k in range(4)
    )
    from_bytes = int.from_bytes
    plane_0, plane_1, plane_2, plane_3 = _PLANES
    for column in range(length):
        index = (first ^ from_bytes(joined[column::length], "little")).to_bytes(count, "little")
        first = second ^ from_bytes(index.translate(plane_0), "little")
        second = third ^ from_bytes(index.translate(plane_1), "little")
        third = fourth ^ from_bytes(index.translate(plane_2), "little")
        fourth = from_bytes(index.translate(plane_3), "little")
    planes = [plane.to_bytes(count, "little") for plane in (first, second, third, fourth)]
    return [a | b << 8 | c << 16 | d << 24 for a, b, c, d in zip(*planes, strict=True)]


@lru_cache(maxsize=1)
def _shift_tables() -> tuple[tuple[int, ...], ...]:
    """Returns, for each byte of a remainder, what `_LANE_BYTES` zero bytes make of its values."""
    zeros = bytes(_LANE_BYTES)
    bits = [_update(1 << bit, zeros) for bit in range(32)]
    tables = []
    for k in range(4):
        table = [0] * 256
        for value in range(1, 256):
            low = value & -value
            table[value] = table[value ^ low] ^ bits[8 * k + low.bit_length() - 1]
        tables.append(tuple(table))
    return tuple(tables)

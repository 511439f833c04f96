"""Encodes 8-bit pixels as PNG, and a sequence of frames as animated PNG."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}  # by channels: grey, RGB, RGBA
_LEVEL = 4  # of zlib: nearly the size of the default in half the time


def encode_png(width: int, height: int, channels: int, data: bytes) -> bytes:
    """Returns the PNG of rows of `width * channels` bytes."""
    return b"".join(
        (
            _SIGNATURE,
            _header(width, height, channels),
            _chunk(b"IDAT", _compress(width * channels, data)),
            _chunk(b"IEND", b""),
        )
    )


def encode_animated_png(width: int, height: int, channels: int, frames: Sequence[bytes], fps: float) -> bytes:
    """Returns the animated PNG of frames of equal size. It repeats without end."""
    delay_ms = min(max(round(1000 / fps), 1), 65535)
    parts = [
        _SIGNATURE,
        _header(width, height, channels),
        _chunk(b"acTL", struct.pack(">II", len(frames), 0)),
    ]
    sequence = 0
    for number, frame in enumerate(frames):
        control = struct.pack(">IIIIIHHBB", sequence, width, height, 0, 0, delay_ms, 1000, 0, 0)
        parts.append(_chunk(b"fcTL", control))
        sequence += 1
        data = _compress(width * channels, frame)
        if number == 0:
            parts.append(_chunk(b"IDAT", data))
        else:
            parts.append(_chunk(b"fdAT", struct.pack(">I", sequence) + data))
            sequence += 1
    return b"".join((*parts, _chunk(b"IEND", b"")))


def _header(width: int, height: int, channels: int) -> bytes:
    return _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0))


def _compress(row_bytes: int, data: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL)
    rows = (data[start : start + row_bytes] for start in range(0, len(data), row_bytes))
    parts = [compressor.compress(b"\0" + row) for row in rows]  # filter 0: none
    return b"".join((*parts, compressor.flush()))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return b"".join(
        (struct.pack(">I", len(data)), kind, data, struct.pack(">I", zlib.crc32(data, zlib.crc32(kind))))
    )

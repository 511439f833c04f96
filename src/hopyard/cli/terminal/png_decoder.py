"""Decodes PNG images of 8 bits per channel, as `hop.Image` writes them, for drawing in a terminal."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
MAX_PIXELS = 2**21  # more would take many seconds


@dataclass(frozen=True, slots=True)
class Bitmap:
    """Rows of RGB pixels, 3 bytes each. Transparent parts are blended with black."""

    width: int
    height: int
    data: bytes

    def pixel(self, x: int, y: int) -> tuple[int, int, int]:
        start = (y * self.width + x) * 3
        return self.data[start], self.data[start + 1], self.data[start + 2]


def decode_png(data: bytes) -> Bitmap | None:
    """Returns the picture; None for another format, for other forms of PNG, for a damaged one, and for one
    with more than `MAX_PIXELS`."""
    try:
        return _decode(data)
    except (struct.error, zlib.error, IndexError, KeyError, ValueError):
        return None


def _decode(data: bytes) -> Bitmap | None:
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        return None
    offset, compressed, palette = 8, [], b""
    width = height = bits = colour = interlace = 0
    while offset + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, offset)
        content = data[offset + 8 : offset + 8 + length]
        offset += length + 12
        if kind == b"IHDR":
            width, height, bits, colour, _, _, interlace = struct.unpack(">IIBBBBB", content)
        elif kind == b"PLTE":
            palette = content
        elif kind == b"IDAT":
            compressed.append(content)
        elif kind == b"IEND":
            break
    if bits != 8 or interlace or not 0 < width * height <= MAX_PIXELS:
        return None
    channels = _CHANNELS[colour]
    size = (width * channels + 1) * height
    rows = zlib.decompressobj().decompress(b"".join(compressed), size)
    if len(rows) < size:
        return None
    pixels = _to_rgb(_unfilter(rows, width * channels, height, channels), colour, palette)
    # a damaged one may refer to colours that its palette does not have
    return Bitmap(width, height, pixels) if len(pixels) == width * height * 3 else None


def _unfilter(rows: bytes, stride: int, height: int, channels: int) -> bytearray:
    """Reverses the filters of PNG, section 9 of its specification."""
    result, previous = bytearray(), bytearray(stride)
    for y in range(height):
        start = y * (stride + 1)
        kind, row = rows[start], bytearray(rows[start + 1 : start + 1 + stride])
        if kind == 1:
            for x in range(channels, stride):
                row[x] = (row[x] + row[x - channels]) & 255
        elif kind == 2:
            for x in range(stride):
                row[x] = (row[x] + previous[x]) & 255
        elif kind == 3:
            for x in range(stride):
                left = row[x - channels] if x >= channels else 0
                row[x] = (row[x] + (left + previous[x]) // 2) & 255
        elif kind == 4:
            for x in range(stride):
                left, corner = (row[x - channels], previous[x - channels]) if x >= channels else (0, 0)
                row[x] = (row[x] + _paeth(left, previous[x], corner)) & 255
        elif kind:
            raise ValueError(f"filter {kind}")
        result += row
        previous = row
    return result


def _paeth(left: int, above: int, corner: int) -> int:
    estimate = left + above - corner
    distances = abs(estimate - left), abs(estimate - above), abs(estimate - corner)
    return (left, above, corner)[distances.index(min(distances))]


def _to_rgb(samples: bytearray, colour: int, palette: bytes) -> bytes:
    if colour == 2:
        return bytes(samples)
    if colour == 3:
        return b"".join(palette[3 * value : 3 * value + 3] for value in samples)
    if colour == 0:
        return bytes(value for value in samples for _ in range(3))
    channels = _CHANNELS[colour]
    parts = bytearray()
    for start in range(0, len(samples), channels):
        *values, alpha = samples[start : start + channels]
        parts += bytes(value * alpha // 255 for value in (values if len(values) == 3 else values * 3))
    return bytes(parts)

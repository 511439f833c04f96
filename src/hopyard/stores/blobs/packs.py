"""Pack files: `MAGIC`, then for each blob `32 bytes digest, u64 LE size, bytes`. Written as a whole, never
changed."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from blake3 import blake3

MAGIC = b"hopyard pack v1\n"
FRAME = struct.Struct("<32sQ")


def pack_name(pack: int) -> str:
    return f"{pack:016x}"


def pack_number(name: str) -> int | None:
    """Returns the number of the pack with this file name; None for any other file."""
    if len(name) != 16 or name != name.lower():
        return None
    try:
        return int(name, 16)
    except ValueError:
        return None


def pack_layout(blobs: Sequence[tuple[bytes, bytes]]) -> tuple[list[bytes], list[int], int]:
    """Returns the parts of the file for `blobs` (raw digest, bytes), the offset of the bytes of each, and the
    file's size."""
    parts, offsets, offset = [MAGIC], [], len(MAGIC)
    for digest, data in blobs:
        parts += (FRAME.pack(digest, len(data)), data)
        offsets.append(offset + FRAME.size)
        offset += FRAME.size + len(data)
    return parts, offsets, offset


def read_frames(path: Path) -> Iterator[tuple[bytes, int, int]]:
    """Yields raw digest, offset and size of each blob of a pack from its frame headers, unchecked. Stops at a
    frame that exceeds the file."""
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        if file.read(len(MAGIC)) != MAGIC:
            return
        offset = len(MAGIC)
        while len(header := file.read(FRAME.size)) == FRAME.size:
            digest, size = FRAME.unpack(header)
            offset += FRAME.size
            if offset + size > end:
                return
            yield digest, offset, size
            offset += size
            file.seek(offset)


def read_valid_frames(path: Path) -> Iterator[tuple[bytes, int, int]]:
    """Yields the frames of blobs that match their digest."""
    with path.open("rb") as file:
        for digest, offset, size in read_frames(path):
            file.seek(offset)
            if blake3(file.read(size)).digest() == digest:
                yield digest, offset, size

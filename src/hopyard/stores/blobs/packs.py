"""Pack files: `MAGIC`, then for each blob `32 bytes digest, u64 LE size, bytes`.
Written whole, never changed."""

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
    """The pack that a file name stands for; None for any other file."""
    if len(name) != 16 or name != name.lower():
        return None
    try:
        return int(name, 16)
    except ValueError:
        return None


def pack_layout(blobs: Sequence[tuple[bytes, bytes]]) -> tuple[list[bytes], list[int], int]:
    """The parts of the file that holds `blobs` (raw digest, bytes), the offset of each one's bytes, and the
    file's size."""
    parts, offsets, at = [MAGIC], [], len(MAGIC)
    for digest, data in blobs:
        parts += (FRAME.pack(digest, len(data)), data)
        offsets.append(at + FRAME.size)
        at += FRAME.size + len(data)
    return parts, offsets, at


def read_frames(path: Path) -> Iterator[tuple[bytes, int, int]]:
    """Raw digest, offset and size of each blob of a pack as its head says, unchecked; whatever follows a
    frame that runs over the file's end is left out."""
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        if file.read(len(MAGIC)) != MAGIC:
            return
        at = len(MAGIC)
        while len(head := file.read(FRAME.size)) == FRAME.size:
            digest, size = FRAME.unpack(head)
            at += FRAME.size
            if at + size > end:
                return
            yield digest, at, size
            at += size
            file.seek(at)


def read_valid_frames(path: Path) -> Iterator[tuple[bytes, int, int]]:
    """`frames` without blobs that do not match their digest."""
    with path.open("rb") as file:
        for digest, at, size in read_frames(path):
            file.seek(at)
            if blake3(file.read(size)).digest() == digest:
                yield digest, at, size

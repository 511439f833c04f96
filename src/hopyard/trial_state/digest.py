"""The digest of an encoded state: BLAKE2b with 32 bytes, as user environments have it.
A second takes in some 1.5 GB, and other threads run meanwhile: never on the way from one unit to the next."""

from __future__ import annotations

import hashlib

BytesLike = bytes | bytearray | memoryview
_CHUNK_BYTES = 8 << 20


def digest(data: BytesLike) -> str:
    """64 hex digits."""
    running = new_digest()
    view = memoryview(data).cast("B")
    for begin in range(0, len(view), _CHUNK_BYTES):
        running.update(view[begin : begin + _CHUNK_BYTES])
    return running.hexdigest()


def new_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=32)

"""The digest of an encoded state: BLAKE2b with 32 bytes, which user environments have.

It processes about 1.5 GB per second and releases the GIL. It must not run between two units of work.
"""

from __future__ import annotations

import hashlib

BytesLike = bytes | bytearray | memoryview
_CHUNK_BYTES = 8 << 20


def digest(data: BytesLike) -> str:
    """Returns 64 hex digits."""
    hasher = new_digest()
    view = memoryview(data).cast("B")
    for start in range(0, len(view), _CHUNK_BYTES):
        hasher.update(view[start : start + _CHUNK_BYTES])
    return hasher.hexdigest()


def new_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=32)

"""Decoding manifests without holding up whoever else the event loop serves."""

from __future__ import annotations

import asyncio

from hopyard.domain.ids import Digest
from hopyard.domain.manifest import Manifest, referred_blobs

_AT_ONCE_BYTES = 64 * 1024  # a millisecond; a million files take seconds


async def decode_manifest(data: bytes) -> Manifest:
    """As `Manifest.decode`. Raises IntegrityError."""
    return Manifest.decode(data) if len(data) <= _AT_ONCE_BYTES else await asyncio.to_thread(Manifest.decode, data)


async def blobs_of(data: bytes) -> set[Digest]:
    """As `referred_blobs`. Raises IntegrityError."""
    return referred_blobs(data) if len(data) <= _AT_ONCE_BYTES else await asyncio.to_thread(referred_blobs, data)

"""Stores blobs and counts them toward the storage of a user."""

from __future__ import annotations

from collections.abc import Sequence

from hopyard.domain.ids import Digest
from hopyard.server.services import Services


async def store_blobs(services: Services, user: str, blobs: Sequence[tuple[Digest, bytes]]) -> None:
    """Stores blobs that no run refers to yet. Callers await `storage.check_quota` before. user: not needed
    without a quota."""
    new_digests = (
        set(await services.blobs.find_missing([digest for digest, _ in blobs]))
        if services.storage.has_quota
        else set()
    )
    if len(blobs) == 1:
        await services.blobs.put(*blobs[0])
    else:
        await services.blobs.put_many(blobs)
    if new_digests:
        await services.storage.record_uploads(
            user, [(digest, len(data)) for digest, data in blobs if digest in new_digests]
        )

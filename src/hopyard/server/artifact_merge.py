"""Adds the files of one replica to those that other replicas of its gang have stored."""

from __future__ import annotations

import asyncio

from blake3 import blake3

from hopyard.domain.ids import Digest, RunId
from hopyard.domain.manifest import Manifest
from hopyard.domain.rank_folders import merge_rank
from hopyard.errors import IntegrityError, NotFound
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.run_store import RunStore


async def merge_artifact(blobs: Blobs, runs: RunStore, run: RunId, rank: int, manifest: Digest) -> Digest:
    """Stores the tree of a run's artifact with these files as the folder of a rank, and returns its digest.
    Call it for one replica of a run at a time. Raises NotFound, IntegrityError, StorageFull."""
    recorded = (await runs.get(run)).artifact
    data = await blobs.get(manifest)
    try:
        earlier = b"" if recorded is None else await blobs.get(recorded)
    except (IntegrityError, NotFound):  # set aside since it was recorded
        earlier = b""
    merged = await asyncio.to_thread(_merge, earlier, rank, data)
    digest = Digest(blake3(merged).hexdigest())
    await blobs.put(digest, merged)
    return digest


def _merge(earlier: bytes, rank: int, data: bytes) -> bytes:
    tree = Manifest.decode(earlier) if earlier else Manifest()
    return merge_rank(tree, rank, Manifest.decode(data)).encode()

"""Manifests that the server reads to decide which blobs a run's token may use."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from blake3 import blake3

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import Digest, attempt_id
from hopyard.domain.manifest import FileEntry, Manifest
from hopyard.server import blob_access
from hopyard.server.blob_access import BlobAccess
from hopyard.stores.blobs.folder import FolderBlobs
from hopyard.stores.memory.runs import MemoryRunStore
from hopyard.stores.memory.state import MemoryState
from hopyard.testing.stores import START, new_run

CHECKPOINTS = 40


def digest_of(data: bytes) -> Digest:
    return Digest(blake3(data).hexdigest())


class CountingBlobs(FolderBlobs):
    reads = 0

    async def get(self, digest: Digest, /) -> bytes:
        self.reads += 1
        return await super().get(digest)


@pytest.mark.parametrize(
    ("kept_bytes", "most_reads"), [(blob_access._CACHE_BYTES, CHECKPOINTS), (10_000, 3 * CHECKPOINTS)]
)
def test_manifests_of_earlier_checkpoints_are_read_once_within_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int, most_reads: int
) -> None:
    monkeypatch.setattr(blob_access, "_CACHE_BYTES", kept_bytes)

    async def scene() -> None:
        runs, blobs = MemoryRunStore(MemoryState()), CountingBlobs(tmp_path / "blobs")
        (run,) = await runs.create([new_run()], now=START)
        chunks: list[Digest] = []
        for step in range(CHECKPOINTS):
            chunk = f"weights {step}".encode()
            chunks.append(digest_of(chunk))
            manifest = Manifest((FileEntry("weights", len(chunk), (chunks[-1],)),)).encode()
            await blobs.put_many([(chunks[-1], chunk), (digest_of(manifest), manifest)])
            await runs.record_checkpoint(
                Checkpoint(run.id, attempt_id(run.id, 1), 0, step, digest_of(manifest), len(chunk), START)
            )
        access, strange = BlobAccess(runs, blobs), digest_of(b"another run's")
        for _ in range(3):
            assert await access.find_unsent(run.id, [*chunks, strange]) == [strange]
        assert blobs.reads == most_reads
        await blobs.close()

    asyncio.run(scene())

"""A run that loses its node each time is retried only as long as its script saves new checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from blake3 import blake3

from hopyard.domain.ids import Digest
from hopyard.domain.manifest import FileEntry, Manifest
from hopyard.domain.run import Run
from hopyard.server.run_folder_progress import has_new_checkpoint
from hopyard.stores.blobs.folder import FolderBlobs
from hopyard.stores.memory.cluster import MemoryClusterStore
from hopyard.stores.memory.commands import MemoryCommandStore
from hopyard.stores.memory.notifications import MemoryNotificationStore
from hopyard.stores.memory.queues import MemoryQueueStore, MemoryReservationStore
from hopyard.stores.memory.runs import MemoryRunStore
from hopyard.stores.memory.state import MemoryState
from hopyard.stores.memory.usage import MemoryUsageStore
from hopyard.testing.stores import ClusterStores, start_run, started_run, time_at


async def _store_tree(blobs: FolderBlobs, files: Mapping[str, str]) -> Digest:
    entries = [
        FileEntry(path, len(text), (Digest(blake3(text.encode()).hexdigest()),))
        for path, text in files.items()
    ]
    data = Manifest.build(entries).encode()
    digest = Digest(blake3(data).hexdigest())
    await blobs.put(digest, data)
    return digest


def test_only_new_checkpoints_are_progress(tmp_path: Path) -> None:
    async def scenario() -> None:
        blobs, state = FolderBlobs(tmp_path), MemoryState()
        stores = ClusterStores(
            MemoryRunStore(state),
            MemoryClusterStore(state),
            MemoryQueueStore(state),
            MemoryReservationStore(state),
            MemoryUsageStore(state),
            MemoryCommandStore(state),
            MemoryNotificationStore(state),
        )
        run_id, attempt = await started_run(stores, max_attempts=5, checkpoint_files=("model.pt",))
        first = {"run/model.pt": "one", "run/train.log": "begun"}
        stored = await _store_tree(blobs, first)

        async def is_progress(files: Mapping[str, str], run: Run) -> bool:
            return await has_new_checkpoint(blobs, run, await _store_tree(blobs, files))

        run = await stores.runs.get(run_id)
        assert not await is_progress(first, run)  # nothing was lost yet
        await stores.cluster.fail_launch(attempt, "gone", now=time_at(1))
        await start_run(stores, run_id, seconds=2)
        second = replace(await stores.runs.get(run_id), run_folder=stored)
        assert not await is_progress(first, second)
        assert not await is_progress({**first, "run/train.log": "begun\nbegun"}, second)
        assert not await is_progress({"run/train.log": "begun"}, second)  # a checkpoint was removed
        assert await is_progress({**first, "run/model.pt": "two"}, second)
        assert await is_progress({**first, "work/last.ckpt": "new"}, second)
        assert await is_progress(first, replace(second, run_folder=None))

    asyncio.run(scenario())

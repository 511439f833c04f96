"""The Blobs and BlobLocator interfaces on a local folder."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from hopyard.domain.ids import Digest, check_digest
from hopyard.errors import IntegrityError, NotFound
from hopyard.file_locks import try_lock
from hopyard.interfaces.blobs import ScrubResult
from hopyard.stores.blobs.gc import GC_LOCK_FILE, collect_garbage
from hopyard.stores.blobs.index import OWN_FILE_PACK
from hopyard.stores.blobs.pack_store import PackStore

_BATCH_BYTES = 8 * 1024 * 1024  # read in one batch by `get_many`
_BATCH_BLOBS = 1024
_SCRUB_BYTES = 64 * 1024 * 1024  # checked in one call
T = TypeVar("T")


class FolderBlobs:
    """Stores blobs below `root`, which is created on first use.

    Only one process at a time may use a folder (the server holds its home's lock). All disk access runs in
    `threads` threads of its own.
    """

    def __init__(self, root: Path, *, threads: int = 3) -> None:
        self._root = root
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="blobs")
        self._open_lock = threading.Lock()
        self._store: PackStore | None = None
        self._gc_lock = asyncio.Lock()

    async def find_missing(self, digests: Iterable[Digest], /) -> Sequence[Digest]:
        return await self._run_in_thread(lambda: self._missing(digests))

    async def sizes(self, digests: Sequence[Digest], /) -> Sequence[int | None]:
        return await self._run_in_thread(lambda: self._sizes(digests))

    async def put(self, digest: Digest, data: bytes, /) -> None:
        await self.put_many([(digest, data)])

    async def put_many(self, blobs: Sequence[tuple[Digest, bytes]], /) -> None:
        await self._run_in_thread(lambda: self._put_many(blobs))

    async def get(self, digest: Digest, /) -> bytes:
        return (await self._run_in_thread(lambda: self._read([digest])))[0][1]

    async def get_many(self, digests: Sequence[Digest], /) -> AsyncIterator[tuple[Digest, bytes]]:
        """Reads the next batch while the caller uses the current one."""
        batches = await self._run_in_thread(lambda: self._batches(digests))
        next_read: asyncio.Future[list[tuple[Digest, bytes]]] | None = None
        try:
            for index in range(len(batches)):
                blobs = await (next_read or self._start_read(batches[index]))
                next_read = self._start_read(batches[index + 1]) if index + 1 < len(batches) else None
                for blob in blobs:
                    yield blob
        finally:
            if next_read is not None:
                next_read.cancel()

    async def locate(self, digests: Sequence[Digest], /) -> Sequence[str | None]:
        return await self._run_in_thread(lambda: self._locate(digests))

    async def remove_unused(self, in_use: Iterable[Digest], /, *, older_than: datetime) -> int:
        """Removes unused blobs, see Blobs. A `put`, also a repeated one, and a `find_missing` count as use.

        So `older_than` must be further back than the longest time between a client's request and its use of
        the answer (and at least 10 minutes). Packs that hold mostly garbage are rewritten, and small packs
        are merged. Nothing is removed while a backup is made.
        """
        async with self._gc_lock:
            raw = (bytes.fromhex(digest) for digest in in_use)
            return await self._run_in_thread(lambda: self._sweep(raw, int(older_than.timestamp())))

    async def scrub(self, after: Digest | None, /) -> ScrubResult:
        return await self._run_in_thread(lambda: self._scrub(after))

    async def usage(self) -> tuple[int, int]:
        return await self._run_in_thread(self._usage)

    async def close(self) -> None:
        """Closes all files. Later calls fail."""
        store, self._store = self._store, None
        if store is not None:
            await self._run_in_thread(store.close)
        self._threads.shutdown()

    def _run_in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    # -- in threads ------------------------------------------------------------------------------------------

    def _open(self) -> PackStore:
        """Returns the store; the first call opens it, cleans it up and compares it with its index."""
        with self._open_lock:
            if self._store is None:
                self._store = PackStore(self._root)
            return self._store

    def _sweep(self, in_use: Iterable[bytes], before: int) -> int:
        store = self._open()
        with try_lock(self._root / GC_LOCK_FILE) as locked:
            return collect_garbage(store, in_use, before=before) if locked else 0

    def _usage(self) -> tuple[int, int]:
        return self._open().index.usage()

    def _missing(self, digests: Iterable[Digest]) -> list[Digest]:
        raw_digests = {check_digest(digest): bytes.fromhex(digest) for digest in digests}
        present = self._open().index.mark_seen(list(raw_digests.values()), int(time.time()))
        return [digest for digest, raw in raw_digests.items() if raw not in present]

    def _sizes(self, digests: Sequence[Digest]) -> list[int | None]:
        raws = [bytes.fromhex(check_digest(digest)) for digest in digests]
        locations = self._open().index.find(raws)
        return [locations[raw].size if raw in locations else None for raw in raws]

    def _locate(self, digests: Sequence[Digest]) -> list[str | None]:
        store = self._open()
        raws = [bytes.fromhex(check_digest(digest)) for digest in digests]
        locations = store.index.find(raws)
        return [
            str(store.large_path(raw)) if raw in locations and locations[raw].pack == OWN_FILE_PACK else None
            for raw in raws
        ]

    def _put_many(self, blobs: Sequence[tuple[Digest, bytes]]) -> None:
        new_blobs: dict[bytes, bytes] = {}
        for digest, data in blobs:
            raw = bytes.fromhex(check_digest(digest))
            if raw not in new_blobs:
                if blake3(data).digest() != raw:
                    raise IntegrityError(
                        f"the bytes sent for blob {digest[:12]} have another digest",
                        hints=("the file may have changed during the push: push again",),
                    )
                new_blobs[raw] = data
        store = self._open()
        for raw in store.index.mark_seen(list(new_blobs), int(time.time())):
            del new_blobs[raw]
        if new_blobs:
            store.store(new_blobs)

    def _batches(self, digests: Sequence[Digest]) -> list[Sequence[Digest]]:
        """Splits `digests` into batches that are read quickly and fit well into memory."""
        locations = self._open().index.find([bytes.fromhex(check_digest(digest)) for digest in digests])
        batches: list[Sequence[Digest]] = []
        first = size = 0
        for index, digest in enumerate(digests):
            location = locations.get(bytes.fromhex(digest))
            blob_size = location.size if location else 0
            if index > first and (size + blob_size > _BATCH_BYTES or index - first >= _BATCH_BLOBS):
                batches.append(digests[first:index])
                first, size = index, 0
            size += blob_size
        if first < len(digests):
            batches.append(digests[first:])
        return batches

    def _scrub(self, after: Digest | None) -> ScrubResult:
        store = self._open()
        if after is None:
            store.restore_quarantined()
        rows = store.index.list_after(bytes.fromhex(after) if after else b"", _BATCH_BLOBS)
        size, damaged, last = 0, [], None
        for row in rows:
            if size >= _SCRUB_BYTES:
                break
            last, size = Digest(row.digest.hex()), size + row.location.size
            try:
                store.read(row.digest, row.location)
            except IntegrityError:
                damaged.append(last)
            except NotFound:
                continue  # garbage collection removed it meanwhile
        return ScrubResult(size, tuple(damaged), last)

    def _start_read(self, batch: Sequence[Digest]) -> asyncio.Future[list[tuple[Digest, bytes]]]:
        return self._run_in_thread(lambda: self._read(batch))

    def _read(self, digests: Sequence[Digest]) -> list[tuple[Digest, bytes]]:
        store = self._open()
        raws = [bytes.fromhex(check_digest(digest)) for digest in digests]
        locations = store.index.find(raws)
        blobs = []
        for digest, raw in zip(digests, raws, strict=True):
            location = locations.get(raw)
            if location is None:
                raise NotFound(f"blob {digest[:12]} is not stored", hints=("push the data again",))
            blobs.append((digest, store.read(raw, location)))
        return blobs

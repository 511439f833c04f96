"""The Blobs and LocatesBlobs contracts on a local folder."""

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

_BATCH_BYTES = 8 * 1024 * 1024  # read in one go by `get_many`
_BATCH_BLOBS = 1024
_SCRUB_BYTES = 64 * 1024 * 1024  # looked at in one call
T = TypeVar("T")


class FolderBlobs:
    """Blobs below `root`, which is made when it is first needed. One process at a time may use a folder (the
    server holds its home's lock). Everything that touches the disk happens in `threads` threads of its
    own."""

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
        """Reads the next batch while the one before is used."""
        batches = await self._run_in_thread(lambda: self._batches(digests))
        ahead: asyncio.Future[list[tuple[Digest, bytes]]] | None = None
        try:
            for at in range(len(batches)):
                ready = await (ahead or self._start_read(batches[at]))
                ahead = self._start_read(batches[at + 1]) if at + 1 < len(batches) else None
                for blob in ready:
                    yield blob
        finally:
            if ahead is not None:
                ahead.cancel()

    async def locate(self, digests: Sequence[Digest], /) -> Sequence[str | None]:
        return await self._run_in_thread(lambda: self._locate(digests))

    async def remove_unused(self, in_use: Iterable[Digest], /, *, older_than: datetime) -> int:
        """See Blobs. A blob counts as seen when it is put, put again, or asked for with `missing`, so
        `older_than` has to lie further back than the longest time between a client's question and its use of
        the answer (and at least 10 minutes). Packs that hold mostly garbage are rewritten, and small packs
        joined. Nothing is removed while a backup is made."""
        async with self._gc_lock:
            raw = (bytes.fromhex(digest) for digest in in_use)
            return await self._run_in_thread(lambda: self._sweep(raw, int(older_than.timestamp())))

    async def scrub(self, after: Digest | None, /) -> ScrubResult:
        return await self._run_in_thread(lambda: self._scrub(after))

    async def usage(self) -> tuple[int, int]:
        return await self._run_in_thread(self._usage)

    async def close(self) -> None:
        """Close all files. Calls after this fail."""
        shelf, self._store = self._store, None
        if shelf is not None:
            await self._run_in_thread(shelf.close)
        self._threads.shutdown()

    def _run_in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    # -- in threads ------------------------------------------------------------------------------------------

    def _open(self) -> PackStore:
        """The shelf; opened, cleaned up and compared with its index at the first call."""
        with self._open_lock:
            if self._store is None:
                self._store = PackStore(self._root)
            return self._store

    def _sweep(self, in_use: Iterable[bytes], before: int) -> int:
        shelf = self._open()
        with try_lock(self._root / GC_LOCK_FILE) as free:
            return collect_garbage(shelf, in_use, before=before) if free else 0

    def _usage(self) -> tuple[int, int]:
        return self._open().index.usage()

    def _missing(self, digests: Iterable[Digest]) -> list[Digest]:
        asked = {check_digest(digest): bytes.fromhex(digest) for digest in digests}
        here = self._open().index.mark_seen(list(asked.values()), int(time.time()))
        return [digest for digest, raw in asked.items() if raw not in here]

    def _sizes(self, digests: Sequence[Digest]) -> list[int | None]:
        raws = [bytes.fromhex(check_digest(digest)) for digest in digests]
        places = self._open().index.find(raws)
        return [places[raw].size if raw in places else None for raw in raws]

    def _locate(self, digests: Sequence[Digest]) -> list[str | None]:
        shelf = self._open()
        raws = [bytes.fromhex(check_digest(digest)) for digest in digests]
        places = shelf.index.find(raws)
        return [
            str(shelf.large_path(raw)) if raw in places and places[raw].pack == OWN_FILE_PACK else None
            for raw in raws
        ]

    def _put_many(self, blobs: Sequence[tuple[Digest, bytes]]) -> None:
        given: dict[bytes, bytes] = {}
        for digest, data in blobs:
            raw = bytes.fromhex(check_digest(digest))
            if raw not in given:
                if blake3(data).digest() != raw:
                    raise IntegrityError(
                        f"the bytes sent for blob {digest[:12]} have another digest",
                        hints=("the file may have changed meanwhile: push again",),
                    )
                given[raw] = data
        shelf = self._open()
        for raw in shelf.index.mark_seen(list(given), int(time.time())):
            del given[raw]
        if given:
            shelf.store(given)

    def _batches(self, digests: Sequence[Digest]) -> list[Sequence[Digest]]:
        """Cut `digests` so that each part is read quickly and fits well into memory."""
        places = self._open().index.find([bytes.fromhex(check_digest(digest)) for digest in digests])
        batches: list[Sequence[Digest]] = []
        first = size = 0
        for at, digest in enumerate(digests):
            place = places.get(bytes.fromhex(digest))
            more = place.size if place else 0
            if at > first and (size + more > _BATCH_BYTES or at - first >= _BATCH_BLOBS):
                batches.append(digests[first:at])
                first, size = at, 0
            size += more
        if first < len(digests):
            batches.append(digests[first:])
        return batches

    def _scrub(self, after: Digest | None) -> ScrubResult:
        shelf = self._open()
        if after is None:
            shelf.restore_quarantined()
        rows = shelf.index.list_after(bytes.fromhex(after) if after else b"", _BATCH_BLOBS)
        size, damaged, last = 0, [], None
        for row in rows:
            if size >= _SCRUB_BYTES:
                break
            last, size = Digest(row.digest.hex()), size + row.location.size
            try:
                shelf.read(row.digest, row.location)
            except IntegrityError:
                damaged.append(last)
            except NotFound:
                continue  # a sweep took it meanwhile
        return ScrubResult(size, tuple(damaged), last)

    def _start_read(self, batch: Sequence[Digest]) -> asyncio.Future[list[tuple[Digest, bytes]]]:
        return self._run_in_thread(lambda: self._read(batch))

    def _read(self, digests: Sequence[Digest]) -> list[tuple[Digest, bytes]]:
        shelf = self._open()
        raws = [bytes.fromhex(check_digest(digest)) for digest in digests]
        places = shelf.index.find(raws)
        found = []
        for digest, raw in zip(digests, raws, strict=True):
            place = places.get(raw)
            if place is None:
                raise NotFound(f"no blob {digest[:12]} here", hints=("push the data again",))
            found.append((digest, shelf.read(raw, place)))
        return found

"""Garbage collection of unreferenced blobs. A blob that a request is about to reference is not removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from hopyard.controller.manifests import blobs_of_manifest
from hopyard.domain.ids import Digest
from hopyard.errors import HopyardError, IntegrityError, NotFound
from hopyard.interfaces.access_store import AccessStore
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.clock import Clock

MIN_BLOB_AGE = timedelta(hours=1)  # blobs of a running upload are not referenced yet
GC_INTERVAL = timedelta(hours=1)
log = logging.getLogger("hopyard.controller")


async def _ignore_swept(_before: datetime) -> None:
    pass


class BlobCollector:
    """Removes unreferenced blobs. One per server.

    on_blobs_removed: called after a collection, for caches of the stored blobs. on_swept: awaited with the
    time before which all unreferenced blobs were removed.
    """

    def __init__(self, access: AccessStore, blobs: Blobs, *, utc_now: Callable[[], datetime]) -> None:
        self._access, self._blobs, self._utc_now = access, blobs, utc_now
        self._pause_count, self._gc_lock = 0, False
        self._pause_generation = asyncio.Condition()
        self.on_blobs_removed: Callable[[], None] = lambda: None
        self.on_swept: Callable[[datetime], Awaitable[None]] = _ignore_swept

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Pauses the removal of blobs within the block. Use it for code that checks for blobs and then
        records a reference."""
        async with self._pause_generation:
            await self._pause_generation.wait_for(lambda: not self._gc_lock)
            self._pause_count += 1
        try:
            yield
        finally:
            async with self._pause_generation:
                self._pause_count -= 1
                self._pause_generation.notify_all()

    async def collect(self) -> int:
        """Removes unreferenced blobs that are older than an hour. Returns the bytes freed.

        Raises IntegrityError when a manifest in use is damaged. Its references are then unknown, so no blob
        is removed.
        """
        async with self._pause_generation:
            await self._pause_generation.wait_for(lambda: not self._gc_lock)
            self._gc_lock = True
            await self._pause_generation.wait_for(lambda: self._pause_count == 0)
        try:
            before = self._utc_now() - MIN_BLOB_AGE
            freed = await self._blobs.remove_unused(await self._find_in_use(), older_than=before)
            await self.on_swept(before)
        finally:
            self.on_blobs_removed()
            async with self._pause_generation:
                self._gc_lock = False
                self._pause_generation.notify_all()
        if freed:
            log.info("removed %d bytes of unreferenced blobs", freed)
        return freed

    async def run(self, clock: Clock) -> None:
        """Collects every hour, until cancelled."""
        while True:
            await clock.sleep_until(clock.now() + GC_INTERVAL)
            try:
                await self.collect()
            except HopyardError as error:
                log.warning("the garbage collection of blobs was abandoned: %s", error)
            except Exception:
                log.exception("the garbage collection of blobs failed")

    async def find_lost(self) -> list[Digest]:
        """Returns the blobs that are in use and missing: damaged and set aside, or without a file. A damaged
        manifest counts as lost, since its references are unknown."""
        async with self.paused():
            used, unreadable = await self._find_referenced()
            return sorted({*await self._blobs.find_missing(used), *unreadable})

    async def _find_in_use(self) -> set[Digest]:
        used, unreadable = await self._find_referenced()
        if unreadable:
            digest, error = next(iter(unreadable.items()))
            raise IntegrityError(
                f"manifest {digest[:12]} is damaged; no blob is removed: {error.message}"
            ) from error
        return used

    async def _find_referenced(self) -> tuple[set[Digest], dict[Digest, IntegrityError]]:
        """Returns the blobs in use, and an error for each manifest that cannot be read."""
        used, unreadable = set(await self._access.blobs_in_use()), dict[Digest, IntegrityError]()
        for digest in set(await self._access.manifests_in_use()):
            used.add(digest)
            try:
                used.update(await blobs_of_manifest(await self._blobs.get(digest)))
            except NotFound:
                continue
            except IntegrityError as error:
                unreadable[digest] = error
        return used, unreadable

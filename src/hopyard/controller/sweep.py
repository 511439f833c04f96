"""Removing blobs that nothing refers to any more, without taking any from under somebody who is about to
refer to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from hopyard.controller.manifests import blobs_of
from hopyard.domain.ids import Digest
from hopyard.errors import HopyardError, IntegrityError, NotFound
from hopyard.interfaces.access_store import AccessStore
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.clock import Clock

YOUNG = timedelta(hours=1)  # blobs of an upload that goes on are not referred to yet
EVERY = timedelta(hours=1)
log = logging.getLogger("hopyard.controller")


async def _nothing_more(_before: datetime) -> None:
    pass


class Sweeper:
    """One per server. after_sweep: called when blobs were removed, for caches of what is there; swept: with
    the time before which all went that nothing referred to."""

    def __init__(self, access: AccessStore, blobs: Blobs, *, now: Callable[[], datetime]) -> None:
        self._access, self._blobs, self._now = access, blobs, now
        self._holders, self._sweeping = 0, False
        self._moved = asyncio.Condition()
        self.after_sweep: Callable[[], None] = lambda: None
        self.swept: Callable[[datetime], Awaitable[None]] = _nothing_more

    @asynccontextmanager
    async def held_off(self) -> AsyncIterator[None]:
        """No blob is removed within: for whoever checks that blobs are there and then writes down that they
        are in use."""
        async with self._moved:
            await self._moved.wait_for(lambda: not self._sweeping)
            self._holders += 1
        try:
            yield
        finally:
            async with self._moved:
                self._holders -= 1
                self._moved.notify_all()

    async def sweep(self) -> int:
        """Remove what nothing refers to and is older than an hour; the bytes freed.

        Raises IntegrityError when a manifest in use is damaged: what it refers to is not known then, so
        nothing is removed.
        """
        async with self._moved:
            await self._moved.wait_for(lambda: not self._sweeping)
            self._sweeping = True
            await self._moved.wait_for(lambda: self._holders == 0)
        try:
            before = self._now() - YOUNG
            freed = await self._blobs.sweep(await self._in_use(), older_than=before)
            await self.swept(before)
        finally:
            self.after_sweep()
            async with self._moved:
                self._sweeping = False
                self._moved.notify_all()
        if freed:
            log.info("swept %d bytes of blobs that nothing refers to", freed)
        return freed

    async def run(self, clock: Clock) -> None:
        """Sweep every hour, until cancelled."""
        while True:
            await clock.sleep_until(clock.now() + EVERY)
            try:
                await self.sweep()
            except HopyardError as error:
                log.warning("the sweep of blobs was left: %s", error)
            except Exception:
                log.exception("the sweep of blobs failed")

    async def lost(self) -> list[Digest]:
        """What is in use and not here: it was damaged and set aside, or its file is gone.
        A manifest that is damaged counts, what it refers to is then not known."""
        async with self.held_off():
            used, unread = await self._referred()
            return sorted({*await self._blobs.missing(used), *unread})

    async def _in_use(self) -> set[Digest]:
        used, unread = await self._referred()
        if unread:
            digest, bad = next(iter(unread.items()))
            raise IntegrityError(
                f"manifest {digest[:12]} is damaged; nothing is swept: {bad.message}"
            ) from bad
        return used

    async def _referred(self) -> tuple[set[Digest], dict[Digest, IntegrityError]]:
        """The blobs in use, and the manifests that cannot be read."""
        used, unread = set(await self._access.blobs_in_use()), dict[Digest, IntegrityError]()
        for digest in set(await self._access.manifests_in_use()):
            used.add(digest)
            try:
                used.update(await blobs_of(await self._blobs.get(digest)))
            except NotFound:
                continue
            except IntegrityError as bad:
                unread[digest] = bad
        return used, unread

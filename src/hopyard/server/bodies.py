"""Memory for the bodies of requests: shared by all, with at most half of it for one user, so that nobody's uploads starve the rest."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from hopyard.errors import ServerUnavailable

_FREE_BYTES = 64 * 1024  # bodies of this size are not counted: they are many, and connections bound them
_STEP_BYTES = 1024 * 1024  # by which a body grows whose size was not announced
WAIT_S = 30.0
_RETRY_AFTER_S = 5.0


class BodyMemory:
    """total_bytes: of all bodies that are being received or used."""

    def __init__(self, total_bytes: int, *, wait_s: float = WAIT_S) -> None:
        self.total_bytes, self._wait_s = total_bytes, wait_s
        self.used_bytes = 0
        self._by_user: dict[str, int] = defaultdict(int)
        self._waiting: list[asyncio.Future[None]] = []

    def lease(self, user: str) -> Lease:
        return Lease(self, user)

    async def take(self, user: str, size: int) -> None:
        """Wait until `size` more bytes may be held for the user. Raises ServerUnavailable when that takes too long."""
        if not self._fits(user, size):
            try:
                async with asyncio.timeout(self._wait_s):
                    while not self._fits(user, size):
                        self._waiting.append(freed := asyncio.get_running_loop().create_future())
                        await freed
            except TimeoutError:
                message = "other uploads take all the memory for request bodies"
                raise ServerUnavailable(message, hints=("try again in a while",), retry_after_s=_RETRY_AFTER_S) from None
        self.used_bytes += size
        self._by_user[user] += size

    def _fits(self, user: str, size: int) -> bool:
        """One body fits always where nothing else is held, or it could never be sent."""
        mine = self._by_user.get(user, 0)
        return (not self.used_bytes or self.used_bytes + size <= self.total_bytes) and (not mine or mine + size <= self.total_bytes // 2)

    def give_back(self, user: str, size: int) -> None:
        self.used_bytes -= size
        self._by_user[user] -= size
        if not self._by_user[user]:
            del self._by_user[user]
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)


class Lease:
    """What one request holds of the memory, until `release`."""

    __slots__ = ("_memory", "_user", "held_bytes")

    def __init__(self, memory: BodyMemory, user: str) -> None:
        self._memory, self._user, self.held_bytes = memory, user, 0

    async def announce(self, size: int) -> None:
        """The body will have this size."""
        if size > _FREE_BYTES:
            await self._grow(size)

    async def arrived(self, size: int) -> None:
        """So many bytes are here: more memory is needed where they were not announced."""
        if size > max(self.held_bytes, _FREE_BYTES):
            await self._grow(-(-size // _STEP_BYTES) * _STEP_BYTES - self.held_bytes)

    async def _grow(self, size: int) -> None:
        await self._memory.take(self._user, size)
        self.held_bytes += size

    def release(self) -> None:
        if self.held_bytes:
            self._memory.give_back(self._user, self.held_bytes)
            self.held_bytes = 0

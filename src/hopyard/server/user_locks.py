"""One request of each user at a time, for requests that compute for long: many of one user would slow down
everybody's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class UserLocks:
    """A lock for each user that has requests, which wait in the order in which they came."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}  # with how many hold it or wait for it

    @asynccontextmanager
    async def hold(self, user: str) -> AsyncIterator[None]:
        lock, count = self._locks.get(user) or (asyncio.Lock(), 0)
        self._locks[user] = lock, count + 1
        try:
            async with lock:
                yield
        finally:
            _, count = self._locks[user]
            if count > 1:
                self._locks[user] = lock, count - 1
            else:
                del self._locks[user]

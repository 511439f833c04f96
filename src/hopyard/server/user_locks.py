"""Serialises expensive requests per user, so that one user cannot slow down all others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class UserLocks:
    """A lock for each user with requests, which run in order of arrival."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}  # with the number of holders and waiters

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

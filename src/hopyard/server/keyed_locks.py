"""Serialises requests per user or run: expensive ones of one user must not slow down all others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class KeyedLocks:
    """A lock for each key with requests, which run in order of arrival."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}  # with the number of holders and waiters

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        lock, count = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = lock, count + 1
        try:
            async with lock:
                yield
        finally:
            _, count = self._locks[key]
            if count > 1:
                self._locks[key] = lock, count - 1
            else:
                del self._locks[key]

"""Quotas of what users store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from hopyard.config.units import bytes_in_words
from hopyard.errors import QuotaExceeded
from hopyard.interfaces.storage_store import StorageStore

_FRESH = timedelta(seconds=5)  # pushes come in hundreds of requests, and sums take a while
_REMEMBERED = 1024


class StorageQuota:
    """quota_bytes: for each user; 0 sets no limit. A run that goes on saves its checkpoints whatever its user stores: they are counted,
    and what comes next is refused."""

    def __init__(self, store: StorageStore, quota_bytes: int, *, now: Callable[[], datetime]) -> None:
        self._store, self._quota, self._now = store, quota_bytes, now
        self._known: dict[str, tuple[int, datetime]] = {}

    async def check(self, user: str, *, adding: int = 0) -> None:
        """Raises QuotaExceeded unless the user may store `adding` bytes more."""
        if not self._quota:
            return
        stored = await self._stored(user)
        if stored + adding > self._quota or stored >= self._quota:
            more = f", and this has {bytes_in_words(adding)}" if adding else ""
            raise QuotaExceeded(
                f"{user} stores {bytes_in_words(stored)} of at most {bytes_in_words(self._quota)}{more}",
                hints=(
                    "free some: `hop dataset rm` removes versions of datasets, `hop rm` runs with their checkpoints",
                    "the quota is `quotas: {storage_per_user: …}` in the config.yaml of the server",
                ),
            )

    async def _stored(self, user: str) -> int:
        now = self._now()
        stored, until = self._known.get(user, (0, now))
        if until <= now:
            stored = await self._store.stored_bytes(user)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[user] = stored, now + _FRESH
        return stored

    def changed(self, user: str) -> None:
        """The user pushed something: sum up anew."""
        self._known.pop(user, None)

    def forget(self) -> None:
        """Something was deleted: sum up anew for everybody."""
        self._known.clear()

"""Quotas of what users store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta

from hopyard.config.units import format_bytes
from hopyard.domain.ids import Digest
from hopyard.errors import QuotaExceeded
from hopyard.interfaces.storage_store import StorageStore, Upload

_CACHE_TTL = timedelta(seconds=5)  # pushes come in hundreds of requests, and sums take a while
_MAX_CACHED_USERS = 1024
# of trees; servers remember for an hour, until their next sweep, which they recorded
_TREE_SIZE_RETENTION = timedelta(hours=2)
_RUN_QUOTA_FACTOR = 2  # how many times the quota of its user a run may fill with checkpoints and files
_MAX_TRACKED_UPLOADS = 1_000_000  # of one user, that nothing refers to yet: older ones are not counted


class UnreferencedUploads:
    """What one user uploaded and nothing refers to yet: by digest the size, and when it came."""

    def __init__(self) -> None:
        self._blobs: dict[bytes, tuple[int, datetime]] = {}  # the oldest first
        self.size_bytes = 0

    def add(self, digest: Digest, size: int, at: datetime) -> None:
        key = bytes.fromhex(digest)
        if key not in self._blobs:
            self._blobs[key] = size, at
            self.size_bytes += size
        if len(self._blobs) > _MAX_TRACKED_UPLOADS:
            self._remove(next(iter(self._blobs)))

    def has(self, digest: Digest) -> bool:
        return bytes.fromhex(digest) in self._blobs

    def total_size(self, digests: Iterable[Digest]) -> int:
        return sum(self._blobs.get(bytes.fromhex(digest), (0,))[0] for digest in digests)

    def remove(self, digests: Iterable[Digest]) -> None:
        for digest in digests:
            self._remove(bytes.fromhex(digest))

    def remove_before(self, at: datetime) -> None:
        for key in [key for key, (_, came) in self._blobs.items() if came < at]:
            self._remove(key)

    def _remove(self, key: bytes) -> None:
        self.size_bytes -= self._blobs.pop(key, (0,))[0]


class StorageQuota:
    """quota_bytes: for each user; 0 sets no limit. A live run saves its checkpoints although its user stores
    that much: they are counted, and what comes next is refused; at twice the quota what runs save is refused,
    too. What users and runs upload counts until something refers to it or it is swept, after a restart too,
    and with what they uploaded to other servers. server: the name of this one among those that share the
    database."""

    def __init__(
        self, store: StorageStore, quota_bytes: int, *, server: str, now: Callable[[], datetime]
    ) -> None:
        self._store, self._quota, self._server, self._now = store, quota_bytes, server, now
        self._usage_cache: dict[str, tuple[int, datetime]] = {}
        self._pending: dict[str, UnreferencedUploads] = {}

    @property
    def has_quota(self) -> bool:
        """Whether there is a quota."""
        return bool(self._quota)

    async def load_uploads(self) -> None:
        """Know what was uploaded before this server began."""
        if self._quota:
            for one in await self._store.list_uploads(self._server):
                self._pending.setdefault(one.user, UnreferencedUploads()).add(
                    one.digest, one.size_bytes, one.at
                )

    async def check_quota(
        self, user: str, *, added_bytes: int = 0, excluded_uploads: Collection[Digest] = ()
    ) -> None:
        """Raises QuotaExceeded unless the user may store `added_bytes` bytes more.
        excluded_uploads: the blobs that these are of, which were uploaded."""
        if not self._quota:
            return
        total, pending = await self._total_usage(user, excluded_uploads)
        if total + added_bytes > self._quota or total >= self._quota:
            more = f", and this upload adds {format_bytes(added_bytes)}" if added_bytes else ""
            uploads = (
                ("wait: unreferenced uploads count too, and are removed within two hours",) if pending else ()
            )
            raise QuotaExceeded(
                f"{user} stores {format_bytes(total)} of at most {format_bytes(self._quota)}{more}",
                hints=(
                    (
                        "free some space: remove versions of datasets with `hop dataset rm`, runs and "
                        "their checkpoints with `hop rm`"
                    ),
                    *uploads,
                    "the quota is `quotas: {storage_per_user: …}` in the config.yaml of the server",
                ),
            )

    async def check_run_quota(self, user: str) -> None:
        """Raises QuotaExceeded where a run of the user may save nothing more."""
        if not self._quota:
            return
        total, _ = await self._total_usage(user, ())
        if total >= _RUN_QUOTA_FACTOR * self._quota:
            raise QuotaExceeded(
                f"{user} stores {format_bytes(total)}, twice the {format_bytes(self._quota)} that are "
                "allowed; runs can save nothing more",
                hints=(
                    (
                        "free some space: remove runs and their checkpoints with `hop rm`, versions of "
                        "datasets with `hop dataset rm`"
                    ),
                ),
            )

    async def _total_usage(self, user: str, excluded_uploads: Collection[Digest]) -> tuple[int, int]:
        """What the user stores, and how much of it nothing refers to yet; without the uploads
        `excluded_uploads`."""
        mine = self._pending.get(user)
        pending = 0 if mine is None else mine.size_bytes - mine.total_size(excluded_uploads)
        return await self._stored_usage(user) + pending, pending

    async def _stored_usage(self, user: str) -> int:
        now = self._now()
        stored, until = self._usage_cache.get(user, (0, now))
        if until <= now:
            stored = await self._store.stored_bytes(user) + await self._store.uploads_elsewhere(
                self._server, user
            )
            if len(self._usage_cache) >= _MAX_CACHED_USERS:
                self._usage_cache.clear()
            self._usage_cache[user] = stored, now + _CACHE_TTL
        return stored

    async def record_uploads(self, user: str, blobs: Sequence[tuple[Digest, int]]) -> None:
        """They were not here before."""
        if not self._quota:
            return
        mine, now = self._pending.setdefault(user, UnreferencedUploads()), self._now()
        for digest, size in blobs:
            mine.add(digest, size, now)
        await self._store.add_uploads(
            self._server, [Upload(user, digest, size, now) for digest, size in blobs]
        )

    def has_uploads(self, user: str) -> bool:
        """Whether the user uploaded anything that nothing refers to yet."""
        return user in self._pending

    async def mark_referenced(self, user: str, digests: Iterable[Digest]) -> None:
        """Something refers to these blobs now, and is counted."""
        mine = self._pending.get(user)
        if mine is not None and (gone := [digest for digest in digests if mine.has(digest)]):
            mine.remove(gone)
            self._trim()
            await self._store.remove_uploads(self._server, user, gone)
        self.invalidate(user)

    async def remove_swept(self, before: datetime) -> None:
        """What nothing referred to and came before this is gone. Sizes of trees that nothing refers to are
        forgotten; what was needed lately is kept: another server may be about to refer to it."""
        for mine in self._pending.values():
            mine.remove_before(before)
        self._trim()
        if self._quota:
            await self._store.remove_uploads_before(self._server, before)
        await self._store.forget_trees(before=before - _TREE_SIZE_RETENTION)

    def _trim(self) -> None:
        self._pending = {user: mine for user, mine in self._pending.items() if mine.size_bytes}

    def invalidate(self, user: str) -> None:
        """The user pushed something: sum up anew."""
        self._usage_cache.pop(user, None)

    def invalidate_all(self) -> None:
        """Something was deleted: sum up anew for everybody."""
        self._usage_cache.clear()

"""Storage quotas of users."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta

from hopyard.config.units import format_bytes
from hopyard.domain.ids import Digest, RunId
from hopyard.errors import QuotaExceeded
from hopyard.interfaces.storage_store import StorageStore, Upload
from hopyard.server.cache_validation import is_valid

_CACHE_TTL = timedelta(seconds=5)  # a push consists of hundreds of requests, and the sum is slow
_MAX_CACHED_USERS = 1024
# servers cache for up to an hour, until their next garbage collection, which trees they have recorded
_TREE_SIZE_RETENTION = timedelta(hours=2)
_RUN_QUOTA_FACTOR = 2  # runs may fill so many times the quota of their user with checkpoints and files
_MAX_TRACKED_UPLOADS = 1_000_000  # unreferenced uploads per user; older ones are not counted


class UnreferencedUploads:
    """Unreferenced uploads of one user: size and upload time by digest."""

    def __init__(self) -> None:
        self._blobs: dict[bytes, tuple[int, datetime]] = {}  # oldest first
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
        for key in [key for key, (_, uploaded_at) in self._blobs.items() if uploaded_at < at]:
            self._remove(key)

    def _remove(self, key: bytes) -> None:
        self.size_bytes -= self._blobs.pop(key, (0,))[0]


class StorageQuota:
    """Limits how much each user stores. quota_bytes: per user; 0 sets no limit. server: the name of this
    server among those that share the database.

    A live run may save checkpoints beyond the quota of its user. They are counted, and the next upload of the
    user is refused. At twice the quota, saving is refused as well.

    Uploads count until they are referenced or removed, also after a restart and on other servers.
    """

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

    async def freed_bytes(self, runs: Sequence[RunId]) -> int:
        """Returns the total size of the trees that only these runs refer to."""
        return await self._store.freed_bytes(runs)

    async def load_uploads(self) -> None:
        """Loads the unreferenced uploads from before the start of this server."""
        if self._quota:
            for upload in await self._store.list_uploads(self._server):
                self._pending.setdefault(upload.user, UnreferencedUploads()).add(
                    upload.digest, upload.size_bytes, upload.at
                )

    async def check_quota(
        self, user: str, *, added_bytes: int = 0, excluded_uploads: Collection[Digest] = ()
    ) -> None:
        """Raises QuotaExceeded unless the user may store `added_bytes` more bytes. excluded_uploads: uploaded
        blobs that these bytes already include."""
        if not self._quota:
            return
        total = await self._total_usage(user, excluded_uploads)
        if total + added_bytes > self._quota or total >= self._quota:
            added_text = f", and this upload adds {format_bytes(added_bytes)}" if added_bytes else ""
            # Blobs of a refused upload are kept: another upload may have been answered that they are stored.
            uploads = self._pending.get(user)
            upload_hints = (
                (
                    f"wait: {format_bytes(uploads.size_bytes)} of uploads without a reference count too, "
                    "also of refused ones, and are removed within two hours; until then, a retry need not "
                    "send them again",
                )
                if uploads is not None and uploads.size_bytes
                else ()
            )
            raise QuotaExceeded(
                f"{user} stores {format_bytes(total)} of at most {format_bytes(self._quota)}{added_text}",
                hints=(
                    (
                        "free some space: remove versions of datasets with `hop dataset rm`, runs and "
                        "their checkpoints with `hop rm`"
                    ),
                    *upload_hints,
                    "the quota is `quotas: {storage_per_user: …}` in the config.yaml of the server",
                ),
            )

    async def check_run_quota(self, user: str) -> None:
        """Raises QuotaExceeded if runs of the user may save no more."""
        if not self._quota:
            return
        total = await self._total_usage(user, ())
        if total >= _RUN_QUOTA_FACTOR * self._quota:
            raise QuotaExceeded(
                f"{user} stores {format_bytes(total)}, twice the quota of "
                f"{format_bytes(self._quota)}; runs cannot save more",
                hints=(
                    (
                        "free some space: remove runs and their checkpoints with `hop rm`, versions of "
                        "datasets with `hop dataset rm`"
                    ),
                ),
            )

    async def _total_usage(self, user: str, excluded_uploads: Collection[Digest]) -> int:
        """Returns how many bytes the user stores, without `excluded_uploads`."""
        uploads = self._pending.get(user)
        pending = 0 if uploads is None else uploads.size_bytes - uploads.total_size(excluded_uploads)
        return await self._stored_usage(user) + pending

    async def _stored_usage(self, user: str) -> int:
        now = self._now()
        stored, until = self._usage_cache.get(user, (0, now))
        if not is_valid(until, now, _CACHE_TTL):
            stored = await self._store.stored_bytes(user) + await self._store.upload_bytes_elsewhere(
                self._server, user
            )
            if len(self._usage_cache) >= _MAX_CACHED_USERS:
                self._usage_cache.clear()
            self._usage_cache[user] = stored, now + _CACHE_TTL
        return stored

    async def record_uploads(self, user: str, blobs: Sequence[tuple[Digest, int]]) -> None:
        """Records new blobs that the user uploaded."""
        if not self._quota:
            return
        uploads, now = self._pending.setdefault(user, UnreferencedUploads()), self._now()
        for digest, size in blobs:
            uploads.add(digest, size, now)
        await self._store.add_uploads(
            self._server, [Upload(user, digest, size, now) for digest, size in blobs]
        )

    def has_uploads(self, user: str) -> bool:
        """Returns whether the user has unreferenced uploads."""
        return user in self._pending

    async def mark_referenced(self, user: str, digests: Iterable[Digest]) -> None:
        """Stops counting these blobs as uploads, since they are now referenced and counted as such."""
        uploads = self._pending.get(user)
        if uploads is not None and (referenced := [digest for digest in digests if uploads.has(digest)]):
            uploads.remove(referenced)
            self._trim()
            await self._store.remove_uploads(self._server, user, referenced)
        self.invalidate(user)

    async def remove_swept(self, before: datetime) -> None:
        """Forgets unreferenced uploads from before this time, since the blobs were removed.

        Sizes of unreferenced trees are forgotten, too. Recently used sizes remain, since another server may
        be about to reference these trees.
        """
        for uploads in self._pending.values():
            uploads.remove_before(before)
        self._trim()
        if self._quota:
            await self._store.remove_uploads_before(self._server, before)
        await self._store.forget_trees(before=before - _TREE_SIZE_RETENTION)

    def _trim(self) -> None:
        self._pending = {user: uploads for user, uploads in self._pending.items() if uploads.size_bytes}

    def invalidate(self, user: str) -> None:
        """Drops the cached usage of a user who has pushed data."""
        self._usage_cache.pop(user, None)

    def invalidate_all(self) -> None:
        """Drops the cached usage of all users, because data was deleted."""
        self._usage_cache.clear()

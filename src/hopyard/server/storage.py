"""Quotas of what users store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta

from hopyard.config.units import bytes_in_words
from hopyard.domain.ids import Digest
from hopyard.errors import QuotaExceeded
from hopyard.interfaces.storage_store import StorageStore, Upload

_FRESH = timedelta(seconds=5)  # pushes come in hundreds of requests, and sums take a while
_REMEMBERED = 1024
# of trees; servers remember for an hour, until their next sweep, which they recorded
_SIZES_KEPT = timedelta(hours=2)
_RUNS_SHARE = 2  # how many times the quota of its user a run may fill with checkpoints and files
_UPLOADS = 1_000_000  # of one user, that nothing refers to yet: older ones are not counted


class Pending:
    """What one user uploaded and nothing refers to yet: by digest the size, and when it came."""

    def __init__(self) -> None:
        self._blobs: dict[bytes, tuple[int, datetime]] = {}  # the oldest first
        self.size_bytes = 0

    def add(self, digest: Digest, size: int, at: datetime) -> None:
        key = bytes.fromhex(digest)
        if key not in self._blobs:
            self._blobs[key] = size, at
            self.size_bytes += size
        if len(self._blobs) > _UPLOADS:
            self._remove(next(iter(self._blobs)))

    def has(self, digest: Digest) -> bool:
        return bytes.fromhex(digest) in self._blobs

    def size_of(self, digests: Iterable[Digest]) -> int:
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
        self._known: dict[str, tuple[int, datetime]] = {}
        self._pending: dict[str, Pending] = {}

    @property
    def limited(self) -> bool:
        """Whether there is a quota."""
        return bool(self._quota)

    async def load(self) -> None:
        """Know what was uploaded before this server began."""
        if self._quota:
            for one in await self._store.uploads(self._server):
                self._pending.setdefault(one.user, Pending()).add(one.digest, one.size_bytes, one.at)

    async def check(self, user: str, *, adding: int = 0, of: Collection[Digest] = ()) -> None:
        """Raises QuotaExceeded unless the user may store `adding` bytes more.
        of: the blobs that these are of, which were uploaded."""
        if not self._quota:
            return
        total, pending = await self._total(user, of)
        if total + adding > self._quota or total >= self._quota:
            more = f", and this has {bytes_in_words(adding)}" if adding else ""
            uploads = (
                ("uploads that nothing refers to are counted, too, and removed within two hours",)
                if pending
                else ()
            )
            raise QuotaExceeded(
                f"{user} stores {bytes_in_words(total)} of at most {bytes_in_words(self._quota)}{more}",
                hints=(
                    (
                        "free some: `hop dataset rm` removes versions of datasets, `hop rm` runs with "
                        "their checkpoints"
                    ),
                    *uploads,
                    "the quota is `quotas: {storage_per_user: …}` in the config.yaml of the server",
                ),
            )

    async def check_run(self, user: str) -> None:
        """Raises QuotaExceeded where a run of the user may save nothing more."""
        if not self._quota:
            return
        total, _ = await self._total(user, ())
        if total >= _RUNS_SHARE * self._quota:
            raise QuotaExceeded(
                f"{user} stores {bytes_in_words(total)}, twice the {bytes_in_words(self._quota)} that "
                "are allowed: runs save nothing more",
                hints=(
                    (
                        "free some: `hop rm` removes runs with their checkpoints, `hop dataset rm` "
                        "versions of datasets"
                    ),
                ),
            )

    async def _total(self, user: str, of: Collection[Digest]) -> tuple[int, int]:
        """What the user stores, and how much of it nothing refers to yet; without the uploads `of`."""
        mine = self._pending.get(user)
        pending = 0 if mine is None else mine.size_bytes - mine.size_of(of)
        return await self._stored(user) + pending, pending

    async def _stored(self, user: str) -> int:
        now = self._now()
        stored, until = self._known.get(user, (0, now))
        if until <= now:
            stored = await self._store.stored_bytes(user) + await self._store.uploads_elsewhere(
                self._server, user
            )
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[user] = stored, now + _FRESH
        return stored

    async def uploaded(self, user: str, blobs: Sequence[tuple[Digest, int]]) -> None:
        """They were not here before."""
        if not self._quota:
            return
        mine, now = self._pending.setdefault(user, Pending()), self._now()
        for digest, size in blobs:
            mine.add(digest, size, now)
        await self._store.add_uploads(
            self._server, [Upload(user, digest, size, now) for digest, size in blobs]
        )

    def has_uploads(self, user: str) -> bool:
        """Whether the user uploaded anything that nothing refers to yet."""
        return user in self._pending

    async def referred(self, user: str, digests: Iterable[Digest]) -> None:
        """Something refers to these blobs now, and is counted."""
        mine = self._pending.get(user)
        if mine is not None and (gone := [digest for digest in digests if mine.has(digest)]):
            mine.remove(gone)
            self._tidy()
            await self._store.remove_uploads(self._server, user, gone)
        self.changed(user)

    async def swept(self, before: datetime) -> None:
        """What nothing referred to and came before this is gone. Sizes of trees that nothing refers to are
        forgotten; what was needed lately is kept: another server may be about to refer to it."""
        for mine in self._pending.values():
            mine.remove_before(before)
        self._tidy()
        if self._quota:
            await self._store.remove_uploads_before(self._server, before)
        await self._store.remove_trees(before=before - _SIZES_KEPT)

    def _tidy(self) -> None:
        self._pending = {user: mine for user, mine in self._pending.items() if mine.size_bytes}

    def changed(self, user: str) -> None:
        """The user pushed something: sum up anew."""
        self._known.pop(user, None)

    def forget(self) -> None:
        """Something was deleted: sum up anew for everybody."""
        self._known.clear()

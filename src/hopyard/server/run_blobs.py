"""Tracks the blobs that each run's own token has uploaded and that are not yet recorded as part of a tree."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from hopyard.domain.ids import Digest, RunId

_MAX_TRACKED_UPLOADS = 4_000_000  # blobs of all runs together, about 100 bytes each


class RunBlobs:
    """The tracked blobs, in memory. After a restart of the server, or after very many uploads, a replica must
    upload its blobs again."""

    def __init__(self) -> None:
        self._digests_of_run: OrderedDict[RunId, set[bytes]] = OrderedDict()
        self._count = 0

    def add(self, run: RunId, digests: Iterable[Digest]) -> None:
        uploaded = self._digests_of_run.setdefault(run, set())
        self._digests_of_run.move_to_end(run)
        old_count = len(uploaded)
        uploaded.update(bytes.fromhex(digest) for digest in digests)
        self._count += len(uploaded) - old_count
        while self._count > _MAX_TRACKED_UPLOADS and len(self._digests_of_run) > 1:
            self._count -= len(self._digests_of_run.popitem(last=False)[1])

    def has(self, run: RunId, digest: Digest) -> bool:
        return bytes.fromhex(digest) in self._digests_of_run.get(run, ())

    def mark_recorded(self, run: RunId, digests: Iterable[Digest]) -> None:
        """Removes blobs that are now part of a tree of the run."""
        uploaded = self._digests_of_run.get(run)
        if uploaded is not None:
            old_count = len(uploaded)
            uploaded.difference_update(bytes.fromhex(digest) for digest in digests)
            self._count -= old_count - len(uploaded)
            if not uploaded:
                del self._digests_of_run[run]

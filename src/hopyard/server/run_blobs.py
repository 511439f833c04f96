"""Which blobs each run's own token has sent to this server and not yet recorded as part of a tree."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from hopyard.domain.ids import Digest, RunId

_MAX_TRACKED_UPLOADS = 4_000_000  # blobs of all runs together, about 100 bytes each


class RunBlobs:
    """In memory: after a restart of the server, or of very many uploads, a run's replica is asked to send its
    blobs again."""

    def __init__(self) -> None:
        self._digests_of_run: OrderedDict[RunId, set[bytes]] = OrderedDict()
        self._count = 0

    def add(self, run: RunId, digests: Iterable[Digest]) -> None:
        sent = self._digests_of_run.setdefault(run, set())
        self._digests_of_run.move_to_end(run)
        before = len(sent)
        sent.update(bytes.fromhex(digest) for digest in digests)
        self._count += len(sent) - before
        while self._count > _MAX_TRACKED_UPLOADS and len(self._digests_of_run) > 1:
            self._count -= len(self._digests_of_run.popitem(last=False)[1])

    def has(self, run: RunId, digest: Digest) -> bool:
        return bytes.fromhex(digest) in self._digests_of_run.get(run, ())

    def mark_recorded(self, run: RunId, digests: Iterable[Digest]) -> None:
        """They belong to a tree of the run from now on."""
        sent = self._digests_of_run.get(run)
        if sent is not None:
            before = len(sent)
            sent.difference_update(bytes.fromhex(digest) for digest in digests)
            self._count -= before - len(sent)
            if not sent:
                del self._digests_of_run[run]

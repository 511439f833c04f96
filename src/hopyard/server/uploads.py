"""Which blobs each run's own token has sent to this server and not yet recorded as part of a tree."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from hopyard.domain.ids import Digest, RunId

_REMEMBERED = 4_000_000  # blobs of all runs together, about 100 bytes each


class Uploads:
    """In memory: after a restart of the server, or of very many uploads, a run's replica is asked to send its
    blobs again."""

    def __init__(self) -> None:
        self._sent: OrderedDict[RunId, set[bytes]] = OrderedDict()
        self._count = 0

    def add(self, run: RunId, digests: Iterable[Digest]) -> None:
        sent = self._sent.setdefault(run, set())
        self._sent.move_to_end(run)
        before = len(sent)
        sent.update(bytes.fromhex(digest) for digest in digests)
        self._count += len(sent) - before
        while self._count > _REMEMBERED and len(self._sent) > 1:
            self._count -= len(self._sent.popitem(last=False)[1])

    def has(self, run: RunId, digest: Digest) -> bool:
        return bytes.fromhex(digest) in self._sent.get(run, ())

    def recorded(self, run: RunId, digests: Iterable[Digest]) -> None:
        """They belong to a tree of the run from now on."""
        sent = self._sent.get(run)
        if sent is not None:
            before = len(sent)
            sent.difference_update(bytes.fromhex(digest) for digest in digests)
            self._count -= before - len(sent)
            if not sent:
                del self._sent[run]

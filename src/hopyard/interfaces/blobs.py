from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from hopyard.domain.ids import Digest


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """size_bytes: the bytes that were read. last: where the next call continues; None at the end."""

    size_bytes: int
    damaged: tuple[Digest, ...]
    last: Digest | None


class Blobs(Protocol):
    """Bytes by their BLAKE3 digest. Written once, checked on arrival, durable when a call returns."""

    async def find_missing(self, digests: Iterable[Digest], /) -> Sequence[Digest]:
        """Returns the digests that are not stored, in the given order, without duplicates."""
        ...

    async def sizes(self, digests: Sequence[Digest], /) -> Sequence[int | None]:
        """Returns the size of each blob in bytes, in the given order; None for a missing blob."""
        ...

    async def put(self, digest: Digest, data: bytes, /) -> None:
        """Stores one blob. Raises StorageFull, and IntegrityError if the bytes have another digest; nothing
        is then stored."""

    async def put_many(self, blobs: Sequence[tuple[Digest, bytes]], /) -> None:
        """Stores many small blobs together, all or none. Raises the errors of `put`."""

    async def get(self, digest: Digest, /) -> bytes:
        """Returns a blob. Raises NotFound, and IntegrityError if the stored blob is damaged; it is then set
        aside, so that it can be stored again."""
        ...

    def get_many(self, digests: Sequence[Digest], /) -> AsyncIterator[tuple[Digest, bytes]]:
        """Yields checked blobs in the given order; raises the errors of `get`."""
        ...

    async def remove_unused(self, in_use: Iterable[Digest], /, *, older_than: datetime) -> int:
        """Removes blobs that are not in use and were last stored or requested before `older_than`; returns
        the freed bytes."""
        ...

    async def scrub(self, after: Digest | None, /) -> ScrubResult:
        """Reads and checks the blobs after this digest (None: the first blobs), as many as take a moment.
        Sets damaged blobs aside."""
        ...

    async def usage(self) -> tuple[int, int]:
        """Returns the number of blobs, and their total size in bytes."""
        ...

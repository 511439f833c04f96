from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from hopyard.domain.ids import Digest


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """size_bytes: how much was read. last: where to go on; None when there are no more."""

    size_bytes: int
    damaged: tuple[Digest, ...]
    last: Digest | None


class Blobs(Protocol):
    """Bytes by their BLAKE3 digest. Written once, checked when they come in, durable when a call returns."""

    async def find_missing(self, digests: Iterable[Digest], /) -> Sequence[Digest]:
        """Those that are not here, in the order given, each once."""
        ...

    async def sizes(self, digests: Sequence[Digest], /) -> Sequence[int | None]:
        """How many bytes each has, in the order given; None for one that is not here."""
        ...

    async def put(self, digest: Digest, data: bytes, /) -> None:
        """Store one blob. Raises IntegrityError when the bytes have another digest (nothing is stored),
        StorageFull."""

    async def put_many(self, blobs: Sequence[tuple[Digest, bytes]], /) -> None:
        """Store many small blobs together, all or none. Raises as `put`."""

    async def get(self, digest: Digest, /) -> bytes:
        """Raises NotFound; IntegrityError when what is stored is damaged (it is then set aside, so that it
        can be put anew)."""
        ...

    def get_many(self, digests: Sequence[Digest], /) -> AsyncIterator[tuple[Digest, bytes]]:
        """In the order given, checked; raises as `get`."""
        ...

    async def remove_unused(self, in_use: Iterable[Digest], /, *, older_than: datetime) -> int:
        """Remove blobs that are not in use and came in before `older_than`; the bytes freed."""
        ...

    async def scrub(self, after: Digest | None, /) -> ScrubResult:
        """Read and check the blobs that follow this digest (None: the first ones), as many as take a moment.
        Damaged ones are set aside."""
        ...

    async def usage(self) -> tuple[int, int]:
        """How many blobs, how many bytes."""
        ...

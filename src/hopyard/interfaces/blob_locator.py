from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hopyard.domain.ids import Digest


@runtime_checkable
class BlobLocator(Protocol):
    """An ability of blob stores that keep blobs as files: telling where, so that readers on the same machine
    need no copy of the bytes through the server. Whoever reads a file so found has to check its digest: it
    may be damaged, or go."""

    async def locate(self, digests: Sequence[Digest], /) -> Sequence[str | None]:
        """For each blob the path of a file that holds it and nothing else; None where there is no such
        file."""
        ...

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hopyard.domain.ids import Digest


@runtime_checkable
class BlobLocator(Protocol):
    """Implemented by blob stores that keep blobs as files.

    It returns their paths, so that readers on the same machine need no copy through the server. A reader has
    to check the digest: the file may be damaged, or removed meanwhile.
    """

    async def locate(self, digests: Sequence[Digest], /) -> Sequence[str | None]:
        """Returns for each blob the path of a file that holds exactly this blob; None if there is no such
        file."""
        ...

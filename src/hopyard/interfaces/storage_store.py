from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from hopyard.domain.ids import Digest, RunId


@dataclass(frozen=True, slots=True)
class Upload:
    """A blob that a user uploaded to a server, and that is not referenced yet."""

    user: str
    digest: Digest
    size_bytes: int
    at: datetime


class StorageStore(Protocol):
    """The sizes in bytes of trees, of all trees that one user's datasets and runs refer to, and of
    unreferenced uploads.

    server: the one with these blobs, if several servers share a database.
    """

    async def record_tree(self, manifest: Digest, size_bytes: int, /, *, now: datetime) -> None:
        """Stores the size of a tree. Idempotent."""
        ...

    async def forget_trees(self, *, before: datetime) -> int:
        """Removes the sizes of unreferenced trees that were last recorded before this time; returns their
        number."""
        ...

    async def stored_bytes(self, user: str, /) -> int:
        """Returns the total size of the dataset versions that the user pushed, and of the code, files and
        checkpoints of the user's runs. Each tree counts once."""
        ...

    async def freed_bytes(self, runs: Sequence[RunId], /) -> int:
        """Returns the total size of the trees that only these runs refer to. Each tree counts once. Chunks
        that a tree shares with others are included."""
        ...

    async def add_uploads(self, server: str, uploads: Sequence[Upload], /) -> None:
        """Adds uploads. Existing ones stay unchanged."""
        ...

    async def list_uploads(self, server: str, /) -> Sequence[Upload]:
        """Returns the uploads, the oldest first."""
        ...

    async def upload_bytes_elsewhere(self, server: str, user: str, /) -> int:
        """Returns the total size of the user's uploads on other servers."""
        ...

    async def remove_uploads(self, server: str, user: str, digests: Sequence[Digest], /) -> None:
        """Removes uploads that are referenced now."""
        ...

    async def remove_uploads_before(self, server: str, before: datetime, /) -> None:
        """Removes older uploads, which were garbage-collected."""
        ...

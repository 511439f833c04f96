from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from hopyard.domain.ids import Digest


@dataclass(frozen=True, slots=True)
class Upload:
    """A blob that a user uploaded to a server, and that nothing refers to yet."""

    user: str
    digest: Digest
    size_bytes: int
    at: datetime


class StorageStore(Protocol):
    """How many bytes there are of each tree, of all trees that one user's datasets and runs refer to, and of
    uploads that nothing refers to yet. server: the one with these blobs, where several servers share a
    database."""

    async def record_tree(self, manifest: Digest, size_bytes: int, /, *, now: datetime) -> None:
        """Idempotent."""
        ...

    async def forget_trees(self, *, before: datetime) -> int:
        """Forget the sizes of trees that nothing refers to and that were recorded before this, last; how
        many."""
        ...

    async def stored_bytes(self, user: str, /) -> int:
        """Of the dataset versions that the user pushed and of the code, files and checkpoints of the user's
        runs, each tree counted once."""
        ...

    async def add_uploads(self, server: str, uploads: Sequence[Upload], /) -> None:
        """Those that are there already stay as they are."""
        ...

    async def list_uploads(self, server: str, /) -> Sequence[Upload]:
        """The oldest first."""
        ...

    async def uploads_elsewhere(self, server: str, user: str, /) -> int:
        """How many bytes of the user's uploads other servers have."""
        ...

    async def remove_uploads(self, server: str, user: str, digests: Sequence[Digest], /) -> None:
        """Something refers to them now."""
        ...

    async def remove_uploads_before(self, server: str, before: datetime, /) -> None:
        """They were swept."""
        ...

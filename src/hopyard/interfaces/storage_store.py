from __future__ import annotations

from typing import Protocol

from hopyard.domain.ids import Digest


class StorageStore(Protocol):
    """How many bytes there are of each tree, and of all trees that one user's datasets and runs refer to."""

    async def record_tree(self, manifest: Digest, size_bytes: int, /) -> None:
        """Idempotent."""
        ...

    async def stored_bytes(self, user: str, /) -> int:
        """Of the dataset versions that the user pushed and of the code, files and checkpoints of the user's runs, each tree counted once."""
        ...

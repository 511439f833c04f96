from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from hopyard.domain.ids import Digest


class AccessStore(Protocol):
    """Users' tokens (only their hashes are kept), the server's signing secret, and which manifests are in use."""

    async def add_token(self, user: str, token_hash: str, /, *, now: datetime) -> None: ...
    async def user_of(self, token_hash: str, /) -> str | None: ...
    async def secret(self) -> bytes:
        """32 random bytes made at the first call and kept: run tokens are signed with it."""
        ...

    async def manifests_in_use(self) -> Sequence[Digest]:
        """Every manifest that a dataset version, run, checkpoint or artifact refers to."""
        ...

    async def blobs_in_use(self) -> Sequence[Digest]:
        """Single blobs referred to directly: git diffs, requirements, locks."""
        ...

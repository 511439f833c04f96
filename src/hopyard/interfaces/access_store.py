from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from hopyard.domain.ids import Digest


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who has a token. created_at: of the oldest one. tokens: how many."""

    name: str
    created_at: datetime
    tokens: int = 1


class AccessStore(Protocol):
    """Users' tokens (only their hashes are kept), the server's signing secret, and which manifests are in use."""

    async def add_token(self, user: str, token_hash: str, /, *, now: datetime) -> None: ...
    async def add_user(self, user: str, token_hash: str, /, *, now: datetime) -> None:
        """A user's first token. Raises Conflict when the user has one already, or the token is another's."""
        ...

    async def user_of(self, token_hash: str, /) -> str | None: ...
    async def users(self) -> Sequence[User]:
        """Everybody who has a token, by name."""
        ...

    async def remove_user(self, user: str, /) -> int:
        """Forget all tokens of a user, and tell how many there were. Raises NotFound when there is none."""
        ...

    async def secret(self) -> bytes:
        """32 random bytes made at the first call and kept: run tokens are signed with it."""
        ...

    async def manifests_in_use(self) -> Sequence[Digest]:
        """Every manifest that a dataset version, run, checkpoint or artifact refers to."""
        ...

    async def blobs_in_use(self) -> Sequence[Digest]:
        """Single blobs referred to directly: git diffs, requirements, locks."""
        ...

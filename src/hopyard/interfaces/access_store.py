from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from hopyard.domain.access import ALL_SCOPES, Scope, Token
from hopyard.domain.ids import Digest

TOKEN_ID_DIGITS = 12  # of a token's hash: they are its id


@dataclass(frozen=True, slots=True)
class User:
    """A user with at least one token. created_at: of the oldest token. tokens: number of tokens."""

    name: str
    created_at: datetime
    tokens: int = 1


class AccessStore(Protocol):
    """Users' tokens (as hashes only) and secrets, and the manifests in use."""

    async def add_token(
        self,
        user: str,
        token_hash: str,
        /,
        *,
        now: datetime,
        name: str,
        scopes: Collection[Scope] = ALL_SCOPES,
        expires_at: datetime | None = None,
    ) -> Token:
        """Adds a token. Raises Conflict if the user has a token of this name, or if the token exists
        already."""
        ...

    async def add_user(self, user: str, token_hash: str, /, *, now: datetime, restored: bool = False) -> None:
        """Adds a user with a first token. restored: a removed user returns, with the objects of this name.

        Raises Conflict if the name is in use, or differs from a name in use by case only. Unless `restored`,
        also raises Conflict if the name was used before. Raises NotFound if `restored` and no user of this
        name was removed.
        """
        ...

    async def find_token(self, token_hash: str, /) -> Token | None: ...
    async def list_tokens(self, user: str | None, /) -> Sequence[Token]:
        """Returns the tokens of one user, or all tokens (None), by user and time."""
        ...

    async def replace_token(
        self, token: str, token_hash: str, /, *, now: datetime, expires_at: datetime | None
    ) -> Token:
        """Replaces the hash of a token (by its id); the old hash is no longer valid. Raises NotFound."""
        ...

    async def remove_token(self, token: str, /) -> Token:
        """Removes a token by its id and returns it. Raises NotFound."""
        ...

    async def record_use(self, token_hash: str, /, *, now: datetime) -> None:
        """Records that the token was used now. Ignores an unknown token."""
        ...

    async def list_users(self) -> Sequence[User]:
        """Returns all users with a token, by name."""
        ...

    async def remove_user(self, user: str, /) -> int:
        """Removes all tokens and secrets of a user, but keeps the name. Returns the number of tokens.
        Raises NotFound."""
        ...

    async def put_secret(self, user: str, name: str, value: str, /, *, now: datetime) -> None:
        """Stores a secret of a user under a name, replacing an earlier secret."""
        ...

    async def secret_names(self, user: str, /) -> Mapping[str, datetime]:
        """Returns the names of a user's secrets, with the times when they were last set, by name."""
        ...

    async def secret_values(self, user: str, names: Collection[str], /) -> Mapping[str, str]:
        """Returns the secrets of the user by name; names without a secret are absent."""
        ...

    async def remove_secret(self, user: str, name: str, /) -> None:
        """Removes a secret. Raises NotFound."""
        ...

    async def database_id(self) -> str:
        """Returns the random id of this database, created at the first call."""
        ...

    async def signing_secret(self) -> bytes | None:
        """Returns the secret with which earlier versions signed the tokens of runs; None if there is none."""
        ...

    async def remove_signing_secret(self, *, now: datetime) -> None:
        """Removes the signing secret after a home has copied it. In a database that several homes share, it
        stays for two more days for the other homes."""
        ...

    async def manifests_in_use(self) -> Sequence[Digest]:
        """Returns every manifest that a dataset version, run, checkpoint or artifact refers to."""
        ...

    async def blobs_in_use(self) -> Sequence[Digest]:
        """Returns the single blobs that are referred to directly: git diffs, requirements, locks."""
        ...

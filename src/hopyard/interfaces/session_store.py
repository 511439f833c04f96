from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session of a browser. token_hash: of the user's token, which has its rights."""

    token_hash: str
    expires_at: datetime


class SessionStore(Protocol):
    """Sessions of browsers, and the links that start one. Secrets are stored as hashes only. A session and a
    link exist only as long as their token does."""

    async def add_link(self, link_hash: str, token: str, /, *, now: datetime, expires_at: datetime) -> None:
        """Adds a link for a token (by its id). Raises NotFound if there is no such token."""
        ...

    async def add_session(
        self, session_hash: str, token: str, /, *, now: datetime, expires_at: datetime
    ) -> None:
        """Adds a session for a token (by its id). Raises NotFound if there is no such token."""
        ...

    async def use_link(
        self, link_hash: str, session_hash: str, /, *, now: datetime, expires_at: datetime
    ) -> bool:
        """Turns a link into a session, once. Returns False if the link is unknown, used or expired."""
        ...

    async def find_session(self, session_hash: str, /, *, now: datetime) -> StoredSession | None: ...
    async def remove_session(self, session_hash: str, /) -> None:
        """Removes a session. Ignores an unknown one."""
        ...

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

SESSION_ID_DIGITS = 12  # so many digits of the hash of a session are its id


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session of a browser.

    token_hash: of the user's token, which has its rights. browser: such as "Firefox on Linux"; "" if it is
    unknown. address: of the last use. used_at: the last use, to the minute.
    """

    id: str
    token_hash: str
    created_at: datetime
    expires_at: datetime
    browser: str = ""
    address: str = ""
    used_at: datetime | None = None


class SessionStore(Protocol):
    """Sessions of browsers, and the links that start one. Secrets are stored as hashes only. A session and a
    link exist only as long as their token does."""

    async def add_link(self, link_hash: str, token: str, /, *, now: datetime, expires_at: datetime) -> None:
        """Adds a link for a token (by its id). Raises NotFound if there is no such token."""
        ...

    async def add_session(
        self,
        session_hash: str,
        token: str,
        /,
        *,
        now: datetime,
        expires_at: datetime,
        browser: str = "",
        address: str = "",
    ) -> None:
        """Adds a session for a token (by its id). Raises NotFound if there is no such token."""
        ...

    async def use_link(
        self,
        link_hash: str,
        session_hash: str,
        /,
        *,
        now: datetime,
        expires_at: datetime,
        browser: str = "",
        address: str = "",
    ) -> bool:
        """Turns a link into a session, once. Returns False if the link is unknown, used or expired."""
        ...

    async def find_session(self, session_hash: str, /, *, now: datetime) -> StoredSession | None: ...
    async def record_use(self, session_hash: str, /, *, now: datetime, address: str) -> None:
        """Records the last use of a session. Ignores an unknown one."""
        ...

    async def list_sessions(self, user: str, /, *, now: datetime) -> Sequence[StoredSession]:
        """Returns the sessions of all tokens of a user that have not expired, oldest first."""
        ...

    async def remove_session(self, session_hash: str, /) -> None:
        """Removes a session. Ignores an unknown one."""
        ...

    async def remove_sessions(self, user: str, ids: Sequence[str], /) -> int:
        """Removes sessions of a user; returns how many there were. Ignores those of other users."""
        ...

"""Sessions of browsers, and the links that start one, in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, select, update

from hopyard.errors import NotFound
from hopyard.interfaces.access_store import TOKEN_ID_DIGITS
from hopyard.interfaces.session_store import SESSION_ID_DIGITS, StoredSession
from hopyard.stores.sql.codec import from_us, from_us_or_none, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import IDS_PER_QUERY, tokens, web_sessions

_LINK, _SESSION = "link", "session"
_MAX_PER_TOKEN = 100  # of each kind; the oldest are removed
_ID = func.substr(web_sessions.c.hash, 1, SESSION_ID_DIGITS)
_STORED: Select[Any] = select(
    _ID,
    web_sessions.c.token,
    web_sessions.c.created_at,
    web_sessions.c.expires_at,
    web_sessions.c.browser,
    web_sessions.c.address,
    web_sessions.c.used_at,
).join(tokens, tokens.c.hash == web_sessions.c.token)


class SqlSessionStore:
    """SessionStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_link(self, link_hash: str, token: str, /, *, now: datetime, expires_at: datetime) -> None:
        """Adds a link. Raises NotFound."""
        await self._database.write(lambda conn: _add(conn, _LINK, link_hash, token, now, expires_at))

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
        """Adds a session. Raises NotFound."""
        about = {"browser": browser, "address": address, "used_at": to_us(now)}
        await self._database.write(
            lambda conn: _add(conn, _SESSION, session_hash, token, now, expires_at, about)
        )

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
        def write(conn: Connection) -> bool:
            is_used = bool(
                conn.execute(
                    # one statement: of two servers that use the link at once, one changes the row
                    update(web_sessions)
                    .where(
                        web_sessions.c.hash == link_hash,
                        web_sessions.c.kind == _LINK,
                        web_sessions.c.expires_at > to_us(now),
                        web_sessions.c.token.in_(select(tokens.c.hash)),
                    )
                    .values(
                        hash=session_hash,
                        kind=_SESSION,
                        created_at=to_us(now),
                        expires_at=to_us(expires_at),
                        browser=browser,
                        address=address,
                        used_at=to_us(now),
                    )
                ).rowcount
            )
            if is_used:
                token = select(web_sessions.c.token).where(web_sessions.c.hash == session_hash)
                _remove_oldest(conn, _SESSION, conn.execute(token).scalar_one())
            return is_used

        return await self._database.write(write)

    async def find_session(self, session_hash: str, /, *, now: datetime) -> StoredSession | None:
        query = _STORED.where(
            web_sessions.c.hash == session_hash,
            web_sessions.c.kind == _SESSION,
            web_sessions.c.expires_at > to_us(now),
        )

        def read(conn: Connection) -> StoredSession | None:
            row = conn.execute(query).first()
            return None if row is None else _to_session(row)

        return await self._database.read(read)

    async def record_use(self, session_hash: str, /, *, now: datetime, address: str) -> None:
        statement = (
            update(web_sessions)
            .where(web_sessions.c.hash == session_hash, web_sessions.c.kind == _SESSION)
            .values(used_at=to_us(now), address=address)
        )
        await self._database.write(lambda conn: conn.execute(statement))

    async def list_sessions(self, user: str, /, *, now: datetime) -> Sequence[StoredSession]:
        query = _STORED.where(
            tokens.c.user_name == user,
            web_sessions.c.kind == _SESSION,
            web_sessions.c.expires_at > to_us(now),
        ).order_by(web_sessions.c.created_at, web_sessions.c.hash)
        return await self._database.read(lambda conn: [_to_session(row) for row in conn.execute(query)])

    async def remove_session(self, session_hash: str, /) -> None:
        statement = web_sessions.delete().where(
            web_sessions.c.hash == session_hash, web_sessions.c.kind == _SESSION
        )
        await self._database.write(lambda conn: conn.execute(statement), vital=True)

    async def remove_sessions(self, user: str, ids: Sequence[str], /) -> int:
        own = select(tokens.c.hash).where(tokens.c.user_name == user)

        def write(conn: Connection) -> int:
            removed = 0
            for start in range(0, len(ids), IDS_PER_QUERY):
                statement = delete(web_sessions).where(
                    web_sessions.c.kind == _SESSION,
                    web_sessions.c.token.in_(own),
                    _ID.in_(ids[start : start + IDS_PER_QUERY]),
                )
                removed += conn.execute(statement).rowcount
            return removed

        return await self._database.write(write, vital=True)


def _to_session(row: Row[Any]) -> StoredSession:
    id_, token_hash, created_at, expires_at, browser, address, used_at = tuple(row)
    return StoredSession(
        id_,
        token_hash,
        from_us(created_at),
        from_us(expires_at),
        browser,
        address,
        from_us_or_none(used_at),
    )


def _add(
    conn: Connection,
    kind: str,
    secret_hash: str,
    token: str,
    now: datetime,
    expires_at: datetime,
    about: Mapping[str, Any] | None = None,
) -> None:
    token_hash = conn.execute(
        select(tokens.c.hash).where(func.substr(tokens.c.hash, 1, TOKEN_ID_DIGITS) == token)
    ).scalar()
    if token_hash is None:
        raise NotFound(f"there is no token {token}", hints=("list the tokens with `hop token list`",))
    conn.execute(
        web_sessions.delete().where(
            (web_sessions.c.expires_at <= to_us(now)) | web_sessions.c.token.not_in(select(tokens.c.hash))
        )
    )
    conn.execute(
        web_sessions.insert().values(
            hash=secret_hash,
            kind=kind,
            token=token_hash,
            created_at=to_us(now),
            expires_at=to_us(expires_at),
            **(about or {}),
        )
    )
    _remove_oldest(conn, kind, token_hash)


def _remove_oldest(conn: Connection, kind: str, token_hash: str) -> None:
    newest = (
        select(web_sessions.c.hash)
        .where(web_sessions.c.token == token_hash, web_sessions.c.kind == kind)
        .order_by(web_sessions.c.created_at.desc(), web_sessions.c.hash)
        .limit(_MAX_PER_TOKEN)
    )
    conn.execute(
        web_sessions.delete().where(
            web_sessions.c.token == token_hash,
            web_sessions.c.kind == kind,
            web_sessions.c.hash.not_in(newest),
        )
    )

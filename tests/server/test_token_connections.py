"""Connections to ports and consoles end with the token or the session that opened them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

from hopyard.domain.access import Scope, Token
from hopyard.domain.ids import AttemptId, RunId
from hopyard.server.authentication import Caller
from hopyard.server.token_connections import TokenConnections

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _token(user: str, name: str, *, expires_at: datetime | None = None) -> Token:
    return Token(name, user, name, frozenset({Scope.SUBMIT}), NOW, expires_at=expires_at)


def test_connections_end_with_their_token() -> None:
    now = NOW
    revoked, short = _token("ann", "revoked"), _token("bob", "short", expires_at=NOW + timedelta(minutes=1))
    stored = [_token("ann", "kept"), revoked, short]
    aborted: list[str] = []
    live = {AttemptId("r.1"), AttemptId("r.2")}
    sessions = {"s1", "s2"}

    async def list_tokens(user: str) -> Sequence[Token]:
        return [token for token in stored if token.user == user]

    async def live_sessions(_user: str) -> Collection[str]:
        return sessions

    async def is_live(attempt: AttemptId) -> bool:
        return attempt in live

    async def check() -> None:
        nonlocal now
        connections = TokenConnections(
            list_tokens, live_sessions=live_sessions, now=lambda: now, is_live_attempt=is_live
        )

        def opened(token: Token, session: str = "") -> AbstractContextManager[None]:
            caller = Caller(token.user, token=token.id, session=session)
            return connections.opened(caller, lambda: aborted.append(session or token.id))

        def opened_by_run(attempt: str) -> AbstractContextManager[None]:
            caller = Caller("run r", RunId("r"), AttemptId(attempt))
            return connections.opened(caller, lambda: aborted.append(attempt))

        with opened_by_run("r.1"), opened_by_run("r.2"):
            await connections.abort_invalid()
            assert aborted == [], "a run has no user's token"
            live.remove(AttemptId("r.1"))
            await connections.abort_invalid()
            assert aborted == ["r.1"]
        aborted.clear()
        with opened(stored[0]), opened(stored[0], "s1"), opened(stored[0], "s2"):
            await connections.abort_invalid()
            sessions.remove("s1")
            await connections.abort_invalid()
            assert aborted == ["s1"]
        aborted.clear()
        with opened(stored[0]), opened(short):
            with opened(revoked):
                await connections.abort_invalid()
                assert aborted == []
                stored.remove(revoked)
                await connections.abort_invalid()
                assert aborted == ["revoked"]
            now += timedelta(minutes=2)
            await connections.abort_invalid()  # the revoked one is closed, and not aborted again
            assert aborted == ["revoked", "short"]

    asyncio.run(check())

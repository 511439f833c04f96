"""Connections to ports and consoles end with the token that opened them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

from hopyard.domain.access import Scope, Token
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

    async def list_tokens(user: str) -> Sequence[Token]:
        return [token for token in stored if token.user == user]

    async def check() -> None:
        nonlocal now
        connections = TokenConnections(list_tokens, now=lambda: now)

        def opened(token: Token) -> AbstractContextManager[None]:
            return connections.opened(Caller(token.user, token=token.id), lambda: aborted.append(token.id))

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

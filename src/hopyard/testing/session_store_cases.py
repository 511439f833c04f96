from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hopyard.interfaces.access_store import TOKEN_ID_DIGITS
from hopyard.interfaces.session_store import SESSION_ID_DIGITS, StoredSession
from hopyard.testing.stores import Stores, time_at

WEEK = timedelta(days=7)
TOKENS = {"alice": "a" * 64, "bob": "b" * 64}


def _session_hash(name: str) -> str:
    return name.encode().hex().ljust(64, "0")


def _session(name: str, user: str, seconds: float) -> StoredSession:
    """Returns a session as `_add_session` stores it."""
    at, id_ = time_at(seconds), _session_hash(name)[:SESSION_ID_DIGITS]
    return StoredSession(id_, TOKENS[user], at, at + WEEK, f"Firefox of {name}", "10.0.0.1", at)


async def _add_session(stores: Stores, name: str, user: str, seconds: float) -> None:
    await stores.sessions.add_session(
        _session_hash(name),
        TOKENS[user][:TOKEN_ID_DIGITS],
        now=time_at(seconds),
        expires_at=time_at(seconds) + WEEK,
        browser=f"Firefox of {name}",
        address="10.0.0.1",
    )


class SessionCases:
    """Sessions of browsers: what a user sees of them, and their end."""

    async def test_user_lists_sessions_of_all_tokens(self, stores: Stores) -> None:
        other = "c" * 64
        for user, token in (*TOKENS.items(), ("alice", other)):
            await stores.access.add_token(user, token, now=time_at(0), name=token[:1])
        await _add_session(stores, "second", "alice", 2)
        await _add_session(stores, "first", "alice", 1)
        await _add_session(stores, "his", "bob", 1)
        await stores.sessions.add_link(
            _session_hash("link"), other[:TOKEN_ID_DIGITS], now=time_at(3), expires_at=time_at(60)
        )
        own = [_session("first", "alice", 1), _session("second", "alice", 2)]
        assert await stores.sessions.list_sessions("alice", now=time_at(3)) == own, "a link is no session"
        assert await stores.sessions.use_link(
            _session_hash("link"),
            _session_hash("third"),
            now=time_at(4),
            expires_at=time_at(4) + WEEK,
            browser="Firefox of third",
            address="10.0.0.1",
        )
        own.append(replace(_session("third", "alice", 4), token_hash=other))
        assert await stores.sessions.list_sessions("alice", now=time_at(4)) == own
        assert await stores.sessions.list_sessions("alice", now=time_at(1) + WEEK) == own[1:], "expired"
        await stores.access.remove_token(other[:TOKEN_ID_DIGITS])
        assert await stores.sessions.list_sessions("alice", now=time_at(4)) == own[:2]
        assert await stores.sessions.list_sessions("carol", now=time_at(4)) == []

    async def test_last_use_of_session_is_recorded(self, stores: Stores) -> None:
        await stores.access.add_token("alice", TOKENS["alice"], now=time_at(0), name="laptop")
        await _add_session(stores, "one", "alice", 1)
        await _add_session(stores, "two", "alice", 1)
        await stores.sessions.record_use(_session_hash("one"), now=time_at(70), address="2001:db8::1")
        await stores.sessions.record_use(_session_hash("gone"), now=time_at(70), address="10.0.0.9")
        used = replace(_session("one", "alice", 1), used_at=time_at(70), address="2001:db8::1")
        assert await stores.sessions.find_session(_session_hash("one"), now=time_at(71)) == used
        assert await stores.sessions.find_session(_session_hash("two"), now=time_at(71)) == _session(
            "two", "alice", 1
        )

    async def test_user_ends_own_sessions_only(self, stores: Stores) -> None:
        for user, token in TOKENS.items():
            await stores.access.add_token(user, token, now=time_at(0), name="laptop")
            await _add_session(stores, f"of {user}", user, 1)
        await _add_session(stores, "other", "alice", 2)
        ids = [_session(name, "alice", 1).id for name in ("of alice", "of bob")]
        assert await stores.sessions.remove_sessions("alice", [*ids, "0" * SESSION_ID_DIGITS]) == 1
        assert await stores.sessions.remove_sessions("alice", []) == 0
        assert await stores.sessions.find_session(_session_hash("of alice"), now=time_at(2)) is None
        for name in ("of bob", "other"):
            assert await stores.sessions.find_session(_session_hash(name), now=time_at(2)) is not None

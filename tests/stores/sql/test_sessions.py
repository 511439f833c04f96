"""Sessions of browsers: one use of a link, the same on each server of a database."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from hopyard.errors import NotFound
from hopyard.interfaces.access_store import TOKEN_ID_DIGITS
from hopyard.interfaces.session_store import StoredSession
from hopyard.stores.sql.access import SqlAccessStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.sessions import SqlSessionStore
from hopyard.stores.sql.tables import web_sessions
from hopyard.testing.stores import time_at

TOKEN_HASH, OTHER_HASH = "a" * 64, "b" * 64
TOKEN = TOKEN_HASH[:TOKEN_ID_DIGITS]
NOW = time_at(0)
MINUTE, WEEK = timedelta(minutes=1), timedelta(days=7)


async def _count(database: Database) -> int:
    return len(await database.read(lambda conn: conn.execute(web_sessions.select()).all()))


def test_link_made_at_one_server_starts_one_session_on_all(url: str) -> None:
    async def scene() -> None:
        first = Database.open(url)
        servers = [first, first if first.dialect == "sqlite" else Database.open(url)]
        access, (here, there) = SqlAccessStore(first), [SqlSessionStore(each) for each in servers]
        await access.add_token("ann", TOKEN_HASH, now=NOW, name="first")
        with pytest.raises(NotFound):
            await here.add_link("l0", "0" * TOKEN_ID_DIGITS, now=NOW, expires_at=NOW + MINUTE)
        await here.add_link("l1", TOKEN, now=NOW, expires_at=NOW + MINUTE)
        assert await there.find_session("l1", now=NOW) is None, "a link is no session"
        used = await asyncio.gather(
            *(
                store.use_link("l1", f"s{number}", now=NOW, expires_at=NOW + WEEK)
                for number, store in enumerate([here, there] * 4)
            )
        )
        assert sorted(used) == [False] * 7 + [True]
        session = f"s{used.index(True)}"
        for store in (here, there):
            found = await store.find_session(session, now=NOW)
            assert found == StoredSession(session, TOKEN_HASH, NOW, NOW + WEEK, used_at=NOW)
            assert await store.find_session(session, now=NOW + WEEK) is None
            assert not await store.use_link(session, "x", now=NOW, expires_at=NOW + WEEK)
        await there.remove_session("unknown")
        await there.remove_session(session)
        assert await here.find_session(session, now=NOW) is None
        for database in dict.fromkeys(servers):
            await database.close()

    asyncio.run(scene())


def test_sessions_end_with_their_token_and_the_oldest_make_room(url: str) -> None:
    async def scene() -> None:
        database = Database.open(url)
        access, store = SqlAccessStore(database), SqlSessionStore(database)
        await access.add_token("ann", TOKEN_HASH, now=NOW, name="first")
        await access.add_token("bob", OTHER_HASH, now=NOW, name="first")
        times = [NOW + timedelta(seconds=number) for number in range(101)]
        await asyncio.gather(
            *(
                store.add_session(f"s{number}", TOKEN, now=at, expires_at=at + WEEK)
                for number, at in enumerate(times)
            )
        )
        await store.add_session("bob's", OTHER_HASH[:TOKEN_ID_DIGITS], now=NOW, expires_at=NOW + MINUTE)
        assert await store.find_session("s0", now=NOW) is None
        assert await store.find_session("s1", now=NOW) is not None
        await store.add_link("link", TOKEN, now=NOW, expires_at=NOW + MINUTE)
        assert not await store.use_link("link", "s", now=NOW + MINUTE, expires_at=NOW + WEEK), "too late"
        await access.remove_token(TOKEN)
        assert await store.find_session("s1", now=NOW) is None
        assert not await store.use_link("link", "s", now=NOW, expires_at=NOW + WEEK)
        assert await store.find_session("bob's", now=NOW) is not None
        await store.add_link("next", OTHER_HASH[:TOKEN_ID_DIGITS], now=NOW + WEEK, expires_at=NOW + 2 * WEEK)
        assert await _count(database) == 1, "expired rows and those of removed tokens are gone"
        await database.close()

    asyncio.run(scene())

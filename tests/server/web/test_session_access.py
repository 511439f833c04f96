"""Sessions over a real socket and with a clock of the test: host names, open streams, lifetimes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hopyard.errors import AuthError
from hopyard.server.authentication import TokenAuthenticator, hash_token
from hopyard.server.signing_keys import SigningKeys
from hopyard.server.web.session_access import LINK_LIFETIME, SESSION_LIFETIME, SessionAccess
from hopyard.stores.sql.access import SqlAccessStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.sessions import SqlSessionStore
from tests.server.api_server import TOKEN, ApiServer, run_scenario
from tests.server.routes.test_session import browser_of, link_secret
from tests.server.routes.test_tokens import create_token
from tests.server.test_stream_followers import listening_port

TIMEOUT_S = 60


def test_links_and_sessions_expire(tmp_path: Path) -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC)]

    async def scenario() -> None:
        database = Database.open(tmp_path / "hopyard.db")
        access = SqlAccessStore(database)
        await access.add_token("ann", hash_token("hop_a"), now=now[0], name="first")

        async def is_live(_attempt: str) -> bool:
            return False

        tokens = TokenAuthenticator(
            access, SigningKeys(now=lambda: now[0]), now=lambda: now[0], is_live_attempt=is_live
        )
        sessions = SessionAccess(SqlSessionStore(database), tokens, now=lambda: now[0])
        caller = await tokens.authenticate("Bearer hop_a")
        for wait, is_valid in ((LINK_LIFETIME - timedelta(seconds=1), True), (LINK_LIFETIME, False)):
            link, expires_at = await sessions.create_link(caller)
            assert expires_at == now[0] + LINK_LIFETIME
            now[0] += wait
            if is_valid:
                session = await sessions.log_in(link=link, token="", address="a")
            else:
                with pytest.raises(AuthError, match="expired"):
                    await sessions.log_in(link=link, token="", address="a")
        assert session.expires_at == now[0] - LINK_LIFETIME + SESSION_LIFETIME
        now[0] = session.expires_at - timedelta(seconds=1)
        assert (await sessions._find(session.secret))[0].user == "ann"
        now[0] = session.expires_at
        with pytest.raises(AuthError, match="ended"):
            await sessions._find(session.secret)
        await tokens.close()
        await database.close()

    asyncio.run(scenario())


async def request(port: int, host: str, path: str, cookie: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        async with asyncio.timeout(TIMEOUT_S):
            return await reader.read()
    finally:
        writer.close()


def test_another_host_name_gets_neither_page_nor_data(tmp_path: Path) -> None:
    """A page of another name that resolves to this server (DNS rebinding) would have an origin of its own."""

    async def scenario(api: ApiServer) -> None:
        async with browser_of(api) as browser, listening_port(api) as port:
            await browser.log_in(token=TOKEN)
            secret = browser.http.cookies["hopyard_session"]
            cookie = f"hopyard_session_{port}={secret}; hopyard_session={secret}"
            for path in ("/", "/api/v1/session", "/api/v1/runs"):
                refused = await request(port, f"evil.example:{port}", path, cookie)
                assert refused.startswith(b"HTTP/1.1 421 "), refused
                assert (await request(port, f"localhost:{port}", path, cookie)).startswith(
                    b"HTTP/1.1 503 " if path == "/" else b"HTTP/1.1 200 "
                )
            # a page of a run has a host name of its own: no path of the API and no page exists there
            label = f"p8888-{'r' * 20}.localhost:{port}"
            assert (await request(port, label, "/api/v1/runs", cookie)).startswith(b"HTTP/1.1 401 ")

    run_scenario(tmp_path, scenario, loops=False, web_folder=tmp_path / "none")


def test_streamed_response_ends_with_the_token_of_the_session(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        token, secret = await create_token(api, "laptop", "read")
        async with browser_of(api) as browser, listening_port(api) as port:
            await browser.log_in(link=await link_secret(api, token=secret))
            cookie = f"hopyard_session_{port}={browser.http.cookies['hopyard_session']}"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                f"GET /api/v1/runs/{run['id']}/follow HTTP/1.1\r\nHost: localhost:{port}\r\n"
                f"Cookie: {cookie}\r\n\r\n".encode()
            )
            async with asyncio.timeout(TIMEOUT_S):
                assert (await reader.readuntil(b'"kind"')).startswith(b"HTTP/1.1 200 ")
                await api.request("DELETE", f"/tokens/{token}")
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await reader.readexactly(10**6)
            writer.close()

    run_scenario(tmp_path, scenario)


def test_clock_that_was_set_back_prolongs_no_revoked_token_or_session(tmp_path: Path) -> None:
    """Another server of the database ends them, after this one has kept them in memory."""
    now = [datetime(2026, 1, 2, tzinfo=UTC)]

    async def scenario() -> None:
        database = Database.open(tmp_path / "hopyard.db")
        access = SqlAccessStore(database)
        for secret, name in (("hop_a", "first"), ("hop_b", "second")):
            await access.add_token("ann", hash_token(secret), now=now[0], name=name)

        async def is_live(_attempt: str) -> bool:
            return False

        tokens = TokenAuthenticator(
            access, SigningKeys(now=lambda: now[0]), now=lambda: now[0], is_live_attempt=is_live
        )
        store = SqlSessionStore(database)
        sessions = SessionAccess(store, tokens, now=lambda: now[0])
        await tokens.authenticate("Bearer hop_a")
        session = await sessions.log_in(link="", token="hop_b", address="a")
        now[0] -= timedelta(days=1)
        await store.remove_session(hash_token(session.secret))
        with pytest.raises(AuthError, match="ended"):
            await sessions._find(session.secret)
        found = next(token for token in await access.list_tokens("ann") if token.name == "first")
        await access.remove_token(found.id)
        with pytest.raises(AuthError, match="unknown token"):
            await tokens.authenticate("Bearer hop_a")
        await tokens.close()
        await database.close()

    asyncio.run(scenario())

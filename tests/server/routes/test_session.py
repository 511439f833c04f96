"""Sessions of browsers through the API: log in, rights, forged requests, and their end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from hopyard.server.web.session_access import FAILED_LOGINS
from tests.server.api_server import API, TOKEN, ApiServer, run_scenario
from tests.server.routes.test_tokens import create_token

SERVER = "http://server"
OWN = {"Origin": SERVER, "Sec-Fetch-Site": "same-origin"}


class Browser:
    """A browser with cookies of its own. csrf: as the page read it."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http, self.csrf = http, ""

    async def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Sends a request as the page does, or with these headers instead."""
        own = OWN | {"X-Hopyard-Session": self.csrf}
        return await self.http.request(
            method, API + path, json=body, headers=own if headers is None else dict(headers)
        )

    async def log_in(self, **secret: str) -> httpx.Response:
        response = await self.send("POST", "/session", secret, OWN)
        if response.status_code == 201:
            self.csrf = response.json()["csrf"]
        return response


@asynccontextmanager
async def browser_of(api: ApiServer, *, address: str = "10.0.0.1") -> AsyncIterator[Browser]:
    transport = httpx.ASGITransport(api.app, client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url=SERVER) as http:
        yield Browser(http)


async def link_secret(api: ApiServer, *, token: str = TOKEN) -> str:
    link = await api.request("POST", "/session/links", token=token, status=201)
    secret: str = link["link"].removeprefix(f"{SERVER}/login?link=")
    assert secret != link["link"], link
    return secret


async def audit(api: ApiServer) -> list[tuple[str, str, str]]:
    records = (await api.request("GET", "/audit"))["records"]
    return [(each["action"], each["user"], each["outcome"]) for each in reversed(records)]


def test_link_logs_one_browser_in_once(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        async with browser_of(api) as first, browser_of(api) as second:
            secret = await link_secret(api)
            created = await first.log_in(link=secret)
            assert created.status_code == 201
            cookie = created.headers["set-cookie"]
            for attribute in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=604800"):
                assert attribute in cookie.split("; "), cookie
            assert "Secure" not in cookie and "Domain" not in cookie
            assert secret not in cookie and created.json()["csrf"] not in cookie

            reused = await second.log_in(link=secret)
            assert reused.status_code == 401 and "`hop ui`" in reused.json()["error"]["hints"][0]
            assert (await second.send("GET", "/runs")).status_code == 401

            session = (await first.send("GET", "/session", headers={})).json()
            assert session == created.json()
            assert (session["user"], session["owner"], session["version"]) == ("alice", True, "0")
            assert session["scopes"] == ["read", "submit", "admin"]
            assert (await first.send("GET", "/runs")).status_code == 200
        assert await audit(api) == [
            ("session.create_link", "alice", "done"),
            ("session.create", "alice", "done"),
            ("session.create", "", "refused"),
            ("run.read", "", "refused"),
        ]
        text = str((await api.request("GET", "/audit"))["records"])
        assert secret not in text and TOKEN not in text

    run_scenario(tmp_path, scenario, loops=False)


def test_page_without_session_is_told_so_without_a_record(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        async with browser_of(api) as browser:
            response = await browser.send("GET", "/session", headers={})
            assert response.status_code == 401
        assert await audit(api) == []
        by_token = await api.request("GET", "/session")
        assert (by_token["user"], by_token["csrf"], by_token["expires_at"]) == ("alice", "", None)

    run_scenario(tmp_path, scenario, loops=False)


FORGED: list[dict[str, str]] = [
    {},
    {"Origin": SERVER},
    {"Origin": SERVER, "X-Hopyard-Session": "x"},
    {"X-Hopyard-Session": "{csrf}"},
    {"Origin": "null", "X-Hopyard-Session": "{csrf}"},
    {"Origin": "http://server.example", "X-Hopyard-Session": "{csrf}"},
    {"Origin": "http://server:81", "X-Hopyard-Session": "{csrf}"},
    {"Origin": "http://p8888-r.server", "X-Hopyard-Session": "{csrf}", "Sec-Fetch-Site": "same-site"},
    {"Origin": SERVER, "X-Hopyard-Session": "{csrf}", "Sec-Fetch-Site": "cross-site"},
]


def test_forged_changes_are_refused(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        async with browser_of(api) as browser:
            await browser.log_in(link=await link_secret(api))
            for headers in FORGED:
                filled = {key: value.format(csrf=browser.csrf) for key, value in headers.items()}
                for method, path, body in (
                    ("PUT", "/secrets/KEY", {"value": "x"}),
                    ("POST", "/tokens", {"name": "forged"}),
                    ("DELETE", "/session", None),
                ):
                    response = await browser.send(method, path, body, filled)
                    assert response.status_code == 403, (headers, method, path, response.text)
            assert (await api.request("GET", "/secrets"))["secrets"] == []
            assert [each["name"] for each in (await api.request("GET", "/tokens"))["tokens"]] == ["home"]
            assert ("token.create", "", "refused") in await audit(api)

            allowed = await browser.send("PUT", "/secrets/KEY", {"value": "x"})
            assert allowed.status_code < 300, allowed.text
            assert ("secret.set", "alice", "done") in await audit(api)

    run_scenario(tmp_path, scenario, loops=False)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://other"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "script"},
    ],
)
def test_page_of_another_origin_reads_nothing_and_logs_nobody_in(
    headers: dict[str, str], tmp_path: Path
) -> None:
    async def scenario(api: ApiServer) -> None:
        async with browser_of(api) as browser:
            for secret in ({"link": await link_secret(api)}, {"token": TOKEN}):
                forged = await browser.send("POST", "/session", secret, headers)
                assert forged.status_code == 403 and "set-cookie" not in forged.headers
            await browser.log_in(link=await link_secret(api))
            for path in ("/session", "/runs", "/tokens"):
                assert (await browser.send("GET", path, headers=headers)).status_code == 403, path

    run_scenario(tmp_path, scenario, loops=False)


def test_session_has_the_rights_of_its_token_only(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for scope, allowed in (("read", ()), ("submit", ("/runs",)), ("admin", ("/runs", "/tokens"))):
            _, secret = await create_token(api, f"t-{scope}", scope)
            async with browser_of(api) as browser:
                session = (await browser.log_in(link=await link_secret(api, token=secret))).json()
                assert session["scopes"][-1] == scope
                for path, body in (("/runs", {"spec": {}}), ("/tokens", {"name": f"more-{scope}"})):
                    response = await browser.send("POST", path, body)
                    assert (response.status_code != 403) is (path in allowed), (scope, path, response.text)
                current = [
                    each["name"]
                    for each in (await browser.send("GET", "/tokens")).json()["tokens"]
                    if each["current"]
                ]
                assert current == [f"t-{scope}"]
                prolonged = await browser.send("POST", "/session/links")
                assert prolonged.status_code == 403, "a session cannot prolong itself"

    run_scenario(tmp_path, scenario, loops=False)


def test_other_users_get_their_own_rights(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = (await api.request("POST", "/users", {"name": "bob"}))["token"]
        async with browser_of(api) as browser:
            session = (await browser.log_in(token=bob)).json()
            assert (session["user"], session["owner"]) == ("bob", False)
            assert (await browser.send("POST", "/users", {"name": "eve"})).status_code == 403
            assert (await browser.send("GET", "/tokens")).json()["tokens"][0]["user"] == "bob"

    run_scenario(tmp_path, scenario, loops=False)


@pytest.mark.parametrize("end", ["revoke", "rotate", "remove the user", "log out"])
def test_session_ends_at_once(end: str, tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = (await api.request("POST", "/users", {"name": "bob"}))["token"]
        token, secret = await create_token(api, "laptop", "submit", token=bob)
        async with browser_of(api) as browser, browser_of(api) as other:
            await browser.log_in(link=await link_secret(api, token=secret))
            await other.log_in(link=await link_secret(api, token=bob))
            unused = await link_secret(api, token=secret)
            assert (await browser.send("GET", "/runs")).status_code == 200
            if end == "revoke":
                await api.request("DELETE", f"/tokens/{token}", token=bob)
            elif end == "rotate":
                await api.request("POST", f"/tokens/{token}/rotate", {}, token=bob, status=200)
            elif end == "remove the user":
                await api.request("DELETE", "/users/bob", status=200)
            else:
                ended = await browser.send("DELETE", "/session")
                assert ended.status_code == 200 and 'hopyard_session=""' in ended.headers["set-cookie"]
                assert ("session.delete", "bob", "done") in await audit(api)
            browser.http.cookies.set("hopyard_session", "", domain="server")
            assert (await browser.send("GET", "/runs")).status_code == 401
            if end != "log out":
                assert (await browser.log_in(link=unused)).status_code == 401, "so do its links"
            expected = 401 if end == "remove the user" else 200
            assert (await other.send("GET", "/runs")).status_code == expected

    run_scenario(tmp_path, scenario, loops=False)


def test_ended_session_is_refused_with_its_cookie(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        async with browser_of(api) as browser:
            await browser.log_in(token=TOKEN)
            cookie = {"Cookie": f"hopyard_session={browser.http.cookies['hopyard_session']}"}
            await browser.send("DELETE", "/session")
            browser.http.cookies.clear()
            response = await browser.send("GET", "/runs", headers=cookie)
            assert (response.status_code, response.json()["error"]["message"]) == (
                401,
                "the session has ended",
            )

    run_scenario(tmp_path, scenario, loops=False)


def test_session_continues_after_a_restart_and_ends_with_its_token(tmp_path: Path) -> None:
    cookies: dict[str, str] = {}

    async def first(api: ApiServer) -> None:
        expires_at = (datetime.now(UTC) + timedelta(seconds=600)).isoformat()
        _, secret = await create_token(api, "short", "submit", expires_at=expires_at)
        async with browser_of(api) as browser:
            await browser.log_in(link=await link_secret(api, token=secret))
            cookies["Cookie"] = f"hopyard_session={browser.http.cookies['hopyard_session']}"
            cookies["X-Hopyard-Session"] = browser.csrf

    async def second(api: ApiServer) -> None:
        async with browser_of(api) as browser:
            response = await browser.send("GET", "/session", headers=cookies)
            assert response.json()["csrf"] == cookies["X-Hopyard-Session"]
            changed = await browser.send("POST", "/queues/none", {}, headers=cookies | OWN)
            assert changed.status_code not in (401, 403), changed.text
            (token,) = [
                each for each in (await api.request("GET", "/tokens"))["tokens"] if each["name"] == "short"
            ]
            await api.request("DELETE", f"/tokens/{token['id']}")
            response = await browser.send("GET", "/session", headers=cookies)
            assert response.status_code == 401

    run_scenario(tmp_path, first, loops=False)
    run_scenario(tmp_path, second, loops=False)


def test_login_by_token_takes_tokens_of_users_only(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        async with browser_of(api) as browser:
            for token in ("hop_wrong", api.run_token(run), "x y", "\u00e9"):
                response = await browser.log_in(token=token)
                assert response.status_code == 401 and "set-cookie" not in response.headers, token
            for body in ({}, {"link": "a", "token": "b"}):
                assert (await browser.send("POST", "/session", body, OWN)).status_code == 400
            assert (await browser.log_in(token=f" {TOKEN}\n")).status_code == 201
            assert (await browser.send("GET", "/runs")).status_code == 200
        for token in (api.run_token(run), None):
            refused = await api.send("POST", "/session/links", token=token)
            assert refused.status_code == (401 if token is None else 403)

    run_scenario(tmp_path, scenario)


def test_failed_logins_of_an_address_are_limited(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        async with browser_of(api) as guesser, browser_of(api, address="10.0.0.2") as other:
            statuses = [
                (await guesser.log_in(link=f"guess-{number}")).status_code
                for number in range(FAILED_LOGINS + 2)
            ]
            assert statuses[:FAILED_LOGINS] == [401] * FAILED_LOGINS
            limited = await guesser.log_in(token=TOKEN)
            assert limited.status_code == 429 and int(limited.headers["retry-after"]) >= 1
            assert (await other.log_in(token=TOKEN)).status_code == 201

    run_scenario(tmp_path, scenario, loops=False)


def test_session_behind_a_proxy_that_ends_tls(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        tls = {"X-Forwarded-Proto": "https"}
        token = {"Authorization": f"Bearer {TOKEN}"}
        async with browser_of(api) as browser:
            link = (await browser.send("POST", "/session/links", {}, tls | token)).json()["link"]
            assert link.startswith("https://server/login?link=")
            own = tls | {"Origin": "https://server"}
            created = await browser.send("POST", "/session", {"link": link.partition("=")[2]}, own)
            name, _, secret = created.headers["set-cookie"].partition(";")[0].partition("=")
            assert name == "__Host-hopyard_session" and "Secure" in created.headers["set-cookie"]
            browser.http.cookies.clear()
            cookie = tls | {"Cookie": f"{name}={secret}", "X-Hopyard-Session": created.json()["csrf"]}
            for origin, status in (("https://server", 200), ("http://server", 403)):
                response = await browser.send("GET", "/runs", headers=cookie | {"Origin": origin})
                assert response.status_code == status
            plain = {key: value for key, value in cookie.items() if key != "X-Forwarded-Proto"}
            assert (await browser.send("GET", "/runs", headers=plain)).status_code == 401

    run_scenario(tmp_path, scenario, loops=False)


def test_cookie_that_another_host_of_the_domain_set_is_refused(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        async with browser_of(api) as browser:
            await browser.log_in(token=TOKEN)
            own = browser.http.cookies["hopyard_session"]
            browser.http.cookies.clear()
            for header, status in (
                (f"hopyard_session=forged; hopyard_session={own}", 401),
                (f"hopyard_session={own}; hopyard_session={own}; other=1", 200),
                (f"hopyard_session_81=forged; hopyard_session={own}", 200),
            ):
                response = await browser.send("GET", "/runs", headers={"Cookie": header})
                assert response.status_code == status, header

    run_scenario(tmp_path, scenario, loops=False)


def test_cookie_opens_no_port_and_no_console(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(ports={"8888": 8888})
        async with browser_of(api) as browser:
            await browser.log_in(token=TOKEN)
            for path, headers in (
                (f"/runs/{run['id']}/ports/8888/", {}),
                (f"/runs/{run['id']}/ports/8888/", {"Upgrade": "websocket", "Connection": "Upgrade"}),
                (f"/runs/{run['id']}/consoles/x", {"Upgrade": "tcp", "Connection": "Upgrade"}),
            ):
                response = await browser.http.get(path, headers=OWN | headers)
                assert response.status_code == 401, (path, response.text)

    run_scenario(tmp_path, scenario)


FIREFOX = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:130.0) Gecko/20100101 Firefox/130.0"}


def test_user_lists_sessions_and_ends_one_or_all_others(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = (await api.request("POST", "/users", {"name": "bob"}))["token"]
        laptop, secret = await create_token(api, "laptop", "submit")
        async with (
            browser_of(api) as first,
            browser_of(api, address="10.0.0.2") as second,
            browser_of(api) as third,
            browser_of(api) as other_user,
        ):
            for browser, token in ((first, TOKEN), (second, secret), (third, TOKEN), (other_user, bob)):
                browser.http.headers.update(FIREFOX)
                assert (await browser.log_in(token=token)).status_code == 201
            listed = (await first.send("GET", "/sessions")).json()["sessions"]
            assert [
                (each["browser"], each["address"], each["token_name"], each["current"]) for each in listed
            ] == [
                ("Firefox on Linux", "10.0.0.1", "home", True),
                ("Firefox on Linux", "10.0.0.2", "laptop", False),
                ("Firefox on Linux", "10.0.0.1", "home", False),
            ]
            assert listed[1]["token"] == laptop and listed[0]["used_at"] >= listed[0]["created_at"]
            page = await api.request("GET", "/sessions", limit=2)
            assert [each["id"] for each in page["sessions"]] == [each["id"] for each in listed[:2]]
            assert [each["current"] for each in page["sessions"]] == [False, False], "no session of a token"
            rest = await api.request("GET", "/sessions", limit=2, after=page["next"])
            assert ([each["id"] for each in rest["sessions"]], rest["next"]) == ([listed[2]["id"]], None)

            path = f"/sessions/{listed[0]['id']}"
            assert (await second.send("DELETE", path)).status_code == 403, "of a token with more scopes"
            assert (await other_user.send("DELETE", path)).status_code == 404
            assert (await second.send("DELETE", "/sessions")).json() == {"ended": []}
            ended = await first.send("DELETE", f"/sessions/{listed[1]['id']}")
            assert (ended.status_code, ended.json()["token_name"]) == (200, "laptop")
            refused = await second.send("GET", "/runs")
            assert (refused.status_code, refused.json()["error"]["message"]) == (401, "the session has ended")
            assert (await first.send("DELETE", f"/sessions/{listed[1]['id']}")).status_code == 404
            ended = await first.send("DELETE", "/sessions")
            assert ended.json() == {"ended": [listed[2]["id"]]}
            for browser, status in ((third, 401), (first, 200), (other_user, 200)):
                assert (await browser.send("GET", "/runs")).status_code == status
            assert {("session.end", "alice", "done"), ("session.end_others", "alice", "done")} <= set(
                await audit(api)
            )
            assert await api.request("DELETE", "/sessions") == {"ended": [listed[0]["id"]]}

    run_scenario(tmp_path, scenario, loops=False)

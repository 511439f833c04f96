"""Tokens through the API: scopes, expiry, last use, replacing and revoking; and the tokens of runs, which end
with them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from hopyard.domain.access import Scope
from hopyard.server.api import all_endpoints
from hopyard.server.openapi import describe_api
from tests.server.api_server import API, TOKEN, UNTIL_KILLED, ApiServer, role, run_scenario
from tests.server.test_authorization import address, short_query

RUN = {"spec": {"project": "p", "roles": [role()]}}


async def create_token(
    api: ApiServer, name: str, *scopes: str, token: str = TOKEN, **body: Any
) -> tuple[str, str]:
    """Creates a token and returns its id and secret."""
    response = await api.request(
        "POST", "/tokens", {"name": name, "scopes": scopes, **body}, token=token, status=201
    )
    return response["token"]["id"], response["secret"]


def test_each_endpoint_accepts_its_scope_and_including_scopes(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        held = {scope: (await create_token(api, f"t-{scope}", scope))[1] for scope in Scope}
        operations = describe_api(all_endpoints(api.services), version="0", base=API)["paths"]
        order = list(Scope)
        for endpoint in all_endpoints(api.services):
            if endpoint.auth == "anyone" or endpoint.path == "/shutdown":
                continue
            (needed,) = operations[API + endpoint.path][endpoint.method.lower()]["security"][0]["token"]
            for scope, token in held.items():
                path = address(endpoint.path, "someruns", "someruns.1")
                response = await api.send(endpoint.method, path, token=token, **short_query(endpoint.path))
                refused = response.status_code == 403 and "needs the scope" in response.text
                assert refused == (order.index(scope) < order.index(needed)), (
                    endpoint.operation_id,
                    scope,
                    needed,
                )

    run_scenario(tmp_path, scenario, loops=False)


def test_read_scope_never_permits_changes(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        reading = {
            e.operation_id
            for e in all_endpoints(api.services)
            if e.required_scope is Scope.READ and e.method != "GET" and e.auth != "anyone"
        }
        assert reading == {
            "post_blobs_missing",
            "post_blobs_fetch",
            "post_blobs_locate",
            "post_blobs_digest_verify",
            "post_runs_id_trials",
            "post_session_links",  # a session has no more rights than the token
            *("delete_session", "delete_sessions", "delete_sessions_session"),  # of the same token only
        }
        changing = {e.operation_id for e in all_endpoints(api.services) if e.required_scope is Scope.ADMIN}
        assert {"post_tokens", "post_users", "put_queues", "post_shutdown", "delete_nodes_node"} <= changing

    run_scenario(tmp_path, scenario, loops=False)


def test_tokens_are_listed_with_their_last_use_replaced_and_revoked(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        (first,) = (await api.request("GET", "/tokens"))["tokens"]
        assert (first["name"], first["scopes"], first["current"], first["expires_at"]) == (
            "home",
            ["read", "submit", "admin"],
            True,
            None,
        )
        id_, secret = await create_token(api, "ci", "submit")
        await api.request("POST", "/tokens", {"name": "ci"}, status=409)
        await api.request("POST", "/runs", RUN, token=secret)

        async def used() -> bool:
            return (
                next(
                    token for token in (await api.request("GET", "/tokens"))["tokens"] if token["id"] == id_
                )["used_at"]
                is not None
            )

        await api.wait_until(used)
        replaced = await api.request("POST", f"/tokens/{id_}/rotate", {})
        assert (replaced["token"]["name"], replaced["token"]["scopes"]) == ("ci", ["submit"])
        await api.request("GET", "/runs", token=secret, status=401)
        await api.request("GET", "/runs", token=replaced["secret"])
        # it may submit, no more
        await api.request(
            "DELETE", f"/tokens/{replaced['token']['id']}", token=replaced["secret"], status=403
        )
        await api.request("DELETE", f"/tokens/{replaced['token']['id']}")
        refused = await api.request("GET", "/runs", token=replaced["secret"], status=401)
        assert refused["error"]["code"] == "not_authorised"
        await api.request("DELETE", f"/tokens/{replaced['token']['id']}", status=404)
        last = await api.request("DELETE", f"/tokens/{first['id']}", status=409)
        assert any("rotate" in hint for hint in last["error"]["hints"])
        fresh = await api.request("POST", f"/tokens/{first['id']}/rotate", {})
        await api.request("GET", "/tokens", status=401)
        await api.request("GET", "/tokens", token=fresh["secret"])

    run_scenario(tmp_path, scenario, loops=False)


def test_replaced_token_keeps_its_lifetime(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        now = datetime.now(UTC)
        await api.request(
            "POST", "/tokens", {"name": "old", "expires_at": (now - timedelta(1)).isoformat()}, status=400
        )
        id_, secret = await create_token(api, "week", "read", expires_at=(now + timedelta(7)).isoformat())
        assert datetime.fromisoformat(
            (await api.request("GET", "/tokens", token=secret))["tokens"][1]["expires_at"]
        ) == now + timedelta(7)
        turned = (await api.request("POST", f"/tokens/{id_}/rotate", {}))["token"]
        life = datetime.fromisoformat(turned["expires_at"]) - datetime.fromisoformat(turned["created_at"])
        assert timedelta(days=6.9) < life <= timedelta(7)

    run_scenario(tmp_path, scenario, loops=False)


def test_only_the_owner_manages_the_tokens_of_others(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = (await api.request("POST", "/users", {"name": "bob"}))["token"]
        refused = await api.request("POST", "/users", {"name": "BOB"}, status=409)
        assert "case" in refused["error"]["message"]
        await api.request("POST", "/users", {"name": "Alice"}, status=409)
        own, _ = await create_token(api, "ci", "read", token=bob)
        for path, query in (("/tokens", {"user": "alice"}), ("/tokens", {"everybody": 1})):
            await api.request("GET", path, token=bob, status=403, **query)
        await api.request("POST", "/tokens", {"name": "x", "user": "alice"}, token=bob, status=403)
        (alices,) = (await api.request("GET", "/tokens"))["tokens"]
        await api.request("DELETE", f"/tokens/{alices['id']}", token=bob, status=404)
        await api.request("POST", f"/tokens/{alices['id']}/rotate", {}, token=bob, status=404)
        result = (await api.request("GET", "/tokens", everybody=1))["tokens"]
        assert [(row["user"], row["name"]) for row in result] == [
            ("alice", "home"),
            ("bob", "first"),
            ("bob", "ci"),
        ]
        await api.request("GET", "/tokens", user="bbo", status=404)
        await api.request("DELETE", f"/tokens/{own}")
        _, other = await create_token(api, "spare", "read", user="bob")
        assert (await api.request("GET", "/tokens", token=other))["tokens"][0]["user"] == "bob"

    run_scenario(tmp_path, scenario, loops=False)


@pytest.mark.parametrize("deleted", [False, True])
def test_run_token_ends_with_its_run(tmp_path: Path, deleted: bool) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        token = api.run_token(run)
        await api.sync(run, [("stdout", 0, b"one\n")], token=token)
        await api.sync(
            run,
            [("stdout", 4, b"two\n")],
            token=token,
            phase="exited",
            final=True,
            exit={"kind": "exit-code", "code": 0, "reason": "finished"},
        )
        if deleted:
            await api.request("DELETE", f"/runs/{run['id']}")
        blob = b"late"
        attempt = f"/attempts/{run['id']}.1"
        for method, path, body in (
            ("POST", attempt + "/replicas/0/sync", b'{"status": {"rank": 0, "phase": "running"}}\n'),
            ("PUT", f"/blobs/{blake3(blob).hexdigest()}", blob),
            ("POST", attempt + "/artifact", {"manifest": "0" * 64}),
            ("GET", f"/runs/{run['id']}", None),
            ("GET", f"/runs/{run['id']}/log", None),
        ):
            response = await api.request(method, path, body, token=token, status=401)
            assert response["error"]["code"] == "run_over", path
        if not deleted:
            assert await api.request("GET", f"/runs/{run['id']}/log") == b"one\ntwo\n"

    run_scenario(tmp_path, scenario)


def test_log_of_an_ended_run_is_not_extended_and_is_acknowledged(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        await api.finish(run, segments=[("stdout", 0, b"one\n")])
        late = await api.sync(run, [("stdout", 4, b"APPENDED\n")], status=409)
        assert "has ended" in late["error"]["message"]
        await api.sync(run, [("stderr", 0, b"new stream\n")], status=409)
        assert (await api.sync(run, [("stdout", 0, b"one\n")]))["offsets"] == {"stdout": 4}
        assert await api.request("GET", f"/runs/{run['id']}/log") == b"one\n"

    run_scenario(tmp_path, scenario)


def test_runs_of_a_removed_user_continue_or_are_stopped(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for user, stop in (("bob", 0), ("eve", 1)):
            token = (await api.request("POST", "/users", {"name": user}))["token"]
            run = await api.request("POST", "/runs", RUN, token=token)
            await api.wait_until(lambda run=run: f"{run['id']}.1" in api.engine.launches)  # type: ignore[misc]
            removed = await api.request("DELETE", f"/users/{user}", stop_runs=stop)
            assert run["name"] in removed["live_runs"]
            phase = (await api.request("GET", f"/runs/{run['id']}"))["phase"]
            assert (phase == "stopping") == bool(stop)
            assert (await api.request("GET", f"/runs/{run['id']}"))["stopped_by"] == (
                "alice" if stop else None
            )
            if not stop:
                assert (
                    run["name"] in (await api.request("DELETE", f"/users/{user}", stop_runs=1))["live_runs"]
                ), "also after the user is removed"
        await api.sync(run, [("stdout", 0, b"the rest")], token=api.run_token(run))  # until it has ended

    run_scenario(tmp_path, scenario, script=UNTIL_KILLED)

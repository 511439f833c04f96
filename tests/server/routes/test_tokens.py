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
from tests.server.stage import API, TOKEN, UNTIL_KILLED, Stage, play, role
from tests.server.test_authorization import address

RUN = {"spec": {"project": "p", "roles": [role()]}}


async def made(stage: Stage, name: str, *scopes: str, token: str = TOKEN, **body: Any) -> tuple[str, str]:
    """Id and text of a new token."""
    told = await stage.ask(
        "POST", "/tokens", {"name": name, "scopes": scopes, **body}, token=token, status=201
    )
    return told["token"]["id"], told["secret"]


def test_each_address_takes_tokens_of_its_scope_and_of_those_that_include_it(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        held = {scope: (await made(stage, f"t-{scope}", scope))[1] for scope in Scope}
        operations = describe_api(all_endpoints(stage.parts), version="0", base=API)["paths"]
        order = list(Scope)
        for endpoint in all_endpoints(stage.parts):
            if endpoint.auth == "anyone" or endpoint.path in ("/shutdown", "/runs/{id}/follow"):
                continue
            (needed,) = operations[API + endpoint.path][endpoint.method.lower()]["security"][0]["token"]
            for scope, token in held.items():
                answer = await stage.send(
                    endpoint.method, address(endpoint.path, "someruns", "someruns.1"), token=token
                )
                refused = answer.status_code == 403 and "needs the scope" in answer.text
                assert refused == (order.index(scope) < order.index(needed)), (
                    endpoint.operation_id,
                    scope,
                    needed,
                )

    play(tmp_path, scene, loops=False)


def test_what_changes_something_never_takes_a_token_for_reading(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        reading = {
            e.operation_id
            for e in all_endpoints(stage.parts)
            if e.required_scope is Scope.READ and e.method != "GET" and e.auth != "anyone"
        }
        assert reading == {
            "post_blobs_missing",
            "post_blobs_fetch",
            "post_blobs_locate",
            "post_blobs_digest_verify",
            "post_runs_id_trials",
        }
        changing = {e.operation_id for e in all_endpoints(stage.parts) if e.required_scope is Scope.ADMIN}
        assert {"post_tokens", "post_users", "put_queues", "post_shutdown", "delete_nodes_node"} <= changing

    play(tmp_path, scene, loops=False)


def test_tokens_are_listed_with_their_last_use_replaced_and_revoked(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        (first,) = (await stage.ask("GET", "/tokens"))["tokens"]
        assert (first["name"], first["scopes"], first["current"], first["expires_at"]) == (
            "home",
            ["read", "submit", "admin"],
            True,
            None,
        )
        id_, secret = await made(stage, "ci", "submit")
        await stage.ask("POST", "/tokens", {"name": "ci"}, status=409)
        await stage.ask("POST", "/runs", RUN, token=secret)

        async def used() -> bool:
            return (
                next(one for one in (await stage.ask("GET", "/tokens"))["tokens"] if one["id"] == id_)[
                    "used_at"
                ]
                is not None
            )

        await stage.until(used)
        turned = await stage.ask("POST", f"/tokens/{id_}/rotate", {})
        assert (turned["token"]["name"], turned["token"]["scopes"]) == ("ci", ["submit"])
        await stage.ask("GET", "/runs", token=secret, status=401)
        await stage.ask("GET", "/runs", token=turned["secret"])
        # it may submit, no more
        await stage.ask("DELETE", f"/tokens/{turned['token']['id']}", token=turned["secret"], status=403)
        await stage.ask("DELETE", f"/tokens/{turned['token']['id']}")
        gone = await stage.ask("GET", "/runs", token=turned["secret"], status=401)
        assert gone["error"]["code"] == "not_authorised"
        await stage.ask("DELETE", f"/tokens/{turned['token']['id']}", status=404)
        last = await stage.ask("DELETE", f"/tokens/{first['id']}", status=409)
        assert any("rotate" in hint for hint in last["error"]["hints"])
        fresh = await stage.ask("POST", f"/tokens/{first['id']}/rotate", {})
        await stage.ask("GET", "/tokens", status=401)
        await stage.ask("GET", "/tokens", token=fresh["secret"])

    play(tmp_path, scene, loops=False)


def test_a_token_expires_and_its_successor_lives_as_long(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        now = datetime.now(UTC)
        await stage.ask(
            "POST", "/tokens", {"name": "old", "expires_at": (now - timedelta(1)).isoformat()}, status=400
        )
        id_, secret = await made(stage, "week", "read", expires_at=(now + timedelta(7)).isoformat())
        assert datetime.fromisoformat(
            (await stage.ask("GET", "/tokens", token=secret))["tokens"][1]["expires_at"]
        ) == now + timedelta(7)
        turned = (await stage.ask("POST", f"/tokens/{id_}/rotate", {}))["token"]
        life = datetime.fromisoformat(turned["expires_at"]) - datetime.fromisoformat(turned["created_at"])
        assert timedelta(days=6.9) < life <= timedelta(7)

    play(tmp_path, scene, loops=False)


def test_only_the_owner_manages_the_tokens_of_others(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        bob = (await stage.ask("POST", "/users", {"name": "bob"}))["token"]
        refused = await stage.ask("POST", "/users", {"name": "BOB"}, status=409)
        assert "case" in refused["error"]["message"]
        await stage.ask("POST", "/users", {"name": "Alice"}, status=409)
        own, _ = await made(stage, "ci", "read", token=bob)
        for path, query in (("/tokens", {"user": "alice"}), ("/tokens", {"everybody": 1})):
            await stage.ask("GET", path, token=bob, status=403, **query)
        await stage.ask("POST", "/tokens", {"name": "x", "user": "alice"}, token=bob, status=403)
        (alices,) = (await stage.ask("GET", "/tokens"))["tokens"]
        await stage.ask("DELETE", f"/tokens/{alices['id']}", token=bob, status=404)
        await stage.ask("POST", f"/tokens/{alices['id']}/rotate", {}, token=bob, status=404)
        told = (await stage.ask("GET", "/tokens", everybody=1))["tokens"]
        assert [(one["user"], one["name"]) for one in told] == [
            ("alice", "home"),
            ("bob", "first"),
            ("bob", "ci"),
        ]
        await stage.ask("GET", "/tokens", user="bbo", status=404)
        await stage.ask("DELETE", f"/tokens/{own}")
        _, other = await made(stage, "spare", "read", user="bob")
        assert (await stage.ask("GET", "/tokens", token=other))["tokens"][0]["user"] == "bob"

    play(tmp_path, scene, loops=False)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_runs_token_ends_with_its_run(tmp_path: Path, deleted: bool) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started()
        token = stage.token_of(run)
        await stage.sync(run, [("stdout", 0, b"one\n")], token=token)
        await stage.sync(
            run,
            [("stdout", 4, b"two\n")],
            token=token,
            phase="exited",
            final=True,
            exit={"kind": "exit-code", "code": 0, "reason": "finished"},
        )
        if deleted:
            await stage.ask("DELETE", f"/runs/{run['id']}")
        blob = b"late"
        attempt = f"/attempts/{run['id']}.1"
        for method, path, body in (
            ("POST", attempt + "/replicas/0/sync", b'{"status": {"rank": 0, "phase": "running"}}\n'),
            ("PUT", f"/blobs/{blake3(blob).hexdigest()}", blob),
            ("POST", attempt + "/artifact", {"manifest": "0" * 64}),
            ("GET", f"/runs/{run['id']}", None),
            ("GET", f"/runs/{run['id']}/log", None),
        ):
            told = await stage.ask(method, path, body, token=token, status=401)
            assert told["error"]["code"] == "run_over", path
        if not deleted:
            assert await stage.ask("GET", f"/runs/{run['id']}/log") == b"one\ntwo\n"

    play(tmp_path, scene)


def test_nobody_extends_the_log_of_an_ended_run_and_what_is_there_is_acknowledged(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started()
        await stage.finish(run, segments=[("stdout", 0, b"one\n")])
        late = await stage.sync(run, [("stdout", 4, b"APPENDED\n")], status=409)
        assert "has ended" in late["error"]["message"]
        await stage.sync(run, [("stderr", 0, b"new stream\n")], status=409)
        assert (await stage.sync(run, [("stdout", 0, b"one\n")]))["offsets"] == {"stdout": 4}
        assert await stage.ask("GET", f"/runs/{run['id']}/log") == b"one\n"

    play(tmp_path, scene)


def test_the_runs_of_a_removed_user_go_on_or_are_ended(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        for user, stop in (("bob", 0), ("eve", 1)):
            token = (await stage.ask("POST", "/users", {"name": user}))["token"]
            run = await stage.ask("POST", "/runs", RUN, token=token)
            await stage.until(lambda run=run: f"{run['id']}.1" in stage.engine.launches)  # type: ignore[misc]
            gone = await stage.ask("DELETE", f"/users/{user}", stop_runs=stop)
            assert run["name"] in gone["live_runs"]
            phase = (await stage.ask("GET", f"/runs/{run['id']}"))["phase"]
            assert (phase == "stopping") == bool(stop)
            assert (await stage.ask("GET", f"/runs/{run['id']}"))["stopped_by"] == ("alice" if stop else None)
            if not stop:
                assert (
                    run["name"] in (await stage.ask("DELETE", f"/users/{user}", stop_runs=1))["live_runs"]
                ), "also once the user is removed"
        await stage.sync(run, [("stdout", 0, b"the rest")], token=stage.token_of(run))  # until it has ended

    play(tmp_path, scene, fate=UNTIL_KILLED)

"""Audit records: stored with the change, kept after deletions, and free of secrets."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from hopyard.domain.access import Scope
from hopyard.domain.audit import AuditFilter
from hopyard.errors import ServerUnavailable
from hopyard.server.api import all_endpoints
from hopyard.server.authentication import hash_token
from hopyard.server.endpoint import Endpoint
from hopyard.server.export_openapi import _Placeholder
from hopyard.server.services import Services
from tests.server.api_server import API, TOKEN, ApiServer, run_scenario
from tests.server.test_server_limits import send_request
from tests.server.test_stream_followers import listening_port

ENDPOINTS = all_endpoints(cast(Services, _Placeholder()))
READS = {
    "/blobs/missing",
    "/blobs/fetch",
    "/blobs/locate",
    "/blobs/{digest}/verify",
    "/blobs/scrub",
    "/runs/{id}/trials",
    "/runs/preview",
    "/runs/compose",
}
DATA = {"/blobs/pack", "/blobs/{digest}"}
OWN_MARKS = {"/runs/{id}/star", "/inbox/read"}  # that only their user sees
LOGIN = "session.create"  # its handler records it: the user is known only after it


@pytest.mark.parametrize(
    "endpoint",
    [endpoint for endpoint in ENDPOINTS if endpoint.method not in ("GET", "HEAD")],
    ids=lambda one: f"{one.method} {one.path}",
)
def test_every_changing_endpoint_is_audited(endpoint: Endpoint[Any, Any]) -> None:
    """Exceptions are listed here, so that a new one is a decision. Reports of runs are below /attempts."""
    assert endpoint.is_audited_change is (
        endpoint.path not in READS | DATA | OWN_MARKS
        and not endpoint.path.startswith("/attempts/")
        and endpoint.action != LOGIN
    )
    assert re.fullmatch(r"[a-z]+\.[a-z_]+", endpoint.action)


def test_documentation_names_each_action() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operating" / "audit.md").read_text()
    rows = [
        line
        for line in text.partition("| action | what |")[2].partition("\n\n")[0].splitlines()
        if line.startswith("| `")
    ]
    assert {action for row in rows for action in re.findall(r"`([a-z]+\.[a-z_]+)`", row)} == {
        LOGIN,
        *(endpoint.action for endpoint in ENDPOINTS if endpoint.is_audited_change),
    }


async def records(api: ApiServer, **query: Any) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = (await api.request("GET", "/audit", **query))["records"]
    return result


async def add_user(api: ApiServer, name: str) -> str:
    created: dict[str, str] = await api.request("POST", "/users", {"name": name})
    return created["token"]


def test_audit_record_has_user_target_origin_and_token_even_after_deletion(
    tmp_path: Path,
) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = await add_user(api, "bob")
        created = await api.request(
            "POST",
            "/runs",
            {
                "spec": {
                    "project": "p",
                    "label": "x",
                    "roles": [{"command": ["true"]}],
                    "env": {"KEY": "SECRET1"},
                    "params": {"lr": "SECRET2"},
                }
            },
            token=bob,
        )
        await api.request("POST", f"/runs/{created['id']}/stop", {"grace_s": 3}, token=bob)
        assert (await api.request("GET", f"/runs/{created['id']}"))["stopped_by"] == "bob"
        await api.request("DELETE", f"/runs/{created['id']}")
        result = await records(api, target=created["id"])
        assert [(row["action"], row["user"], row["target"], row["outcome"]) for row in result] == [
            ("run.delete", "alice", "bob/p/1", "done"),
            ("run.stop", "bob", "bob/p/1", "done"),
            ("run.submit", "bob", "bob/p/1", "done"),
        ]
        assert result == await records(api, target="bob/p/1")
        submitted = result[-1]
        assert submitted["origin"] == "127.0.0.1"
        assert submitted["token"] == hash_token(bob)[: len(submitted["token"])]
        assert (submitted["detail"]["label"], submitted["detail"]["env"]) == ("x", ["KEY"])
        assert result[1]["detail"] == {"grace_s": 3.0}
        everything = json.dumps(await records(api))
        assert "SECRET" not in everything
        assert bob not in everything

    run_scenario(tmp_path, scenario, loops=False)


def test_refusals_are_recorded_and_bounded(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = await add_user(api, "bob")
        run = await api.submit(plan=0)
        await api.request("POST", f"/runs/{run['id']}/stop", {}, token=bob, status=403)
        await api.request("POST", "/users", {"name": "eve"}, token=bob, status=403)
        await api.request("GET", "/datasets", token="hop_wrong", status=401)
        refused = await records(api, outcome="refused")
        assert [(record["user"], record["action"], record["target"]) for record in refused] == [
            ("", "dataset.read", ""),
            ("bob", "user.add", ""),
            ("bob", "run.stop", str(run["name"])),
        ]
        assert "allowed users: alice" in refused[-1]["detail"]["why"]
        for _ in range(200):
            await api.request("GET", "/datasets", token="hop_wrong", status=401)
        assert len(await api.services.audit.list(AuditFilter(limit=1000))) < 120
        await api.request("POST", "/runs/rnone-here/stop", {}, status=404)
        assert not await records(api, target="rnone-here")

    run_scenario(tmp_path, scenario, loops=False)


def test_users_see_their_own_records_and_the_owner_sees_all(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = await add_user(api, "bob")
        for _ in range(3):
            await api.submit(plan=0)
        await api.request(
            "POST", "/runs", {"spec": {"project": "p", "roles": [{"command": ["true"]}]}}, token=bob
        )
        await api.request("GET", "/audit", token=bob, user="alice", status=403)

        async def all_recorded() -> bool:
            return len(await records(api, action="run")) == 4

        await api.wait_until(all_recorded)
        visible = await api.request("GET", "/audit", token=bob)
        assert {record["user"] for record in visible["records"]} == {"bob"}
        first = await api.request("GET", "/audit", limit=2, action="run")
        second_page = await api.request("GET", "/audit", limit=2, action="run", before=first["next"])
        assert [record["action"] for record in [*first["records"], *second_page["records"]]] == [
            "run.submit"
        ] * 4
        assert second_page["next"] is None

    run_scenario(tmp_path, scenario, loops=False)


def test_unknown_action_is_an_error_with_the_known_actions(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for action, near, known in (
            ("run.stpo", "run.stop", "run.submit"),
            ("foo", None, "dataset"),
            ("tokens", "token", "run"),
            ("run.", None, "run.stop"),
        ):
            error = (await api.request("GET", "/audit", action=action, status=400))["error"]
            assert action in error["message"] and known in error["hints"][-1], error
            assert near is None or f"`{near}`" in error["hints"][0]
        for action in ("run", "run.stop", "queue.apply", "server.sweep", "token", "audit.read"):
            assert await records(api, action=action) == []

    run_scenario(tmp_path, scenario, loops=False)


def test_record_has_the_unix_user_of_the_connection(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        async with listening_port(api) as port:
            request = (
                f"POST {API}/sweep HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
                "Content-Length: 0\r\n\r\n"
            )
            assert (await send_request(port, request.encode()))[0] == 200
        (record,) = await records(api, action="server.sweep")
        assert record["origin"] in (f"uid {os.getuid()}", "127.0.0.1")  # the kernel may not report it

    run_scenario(tmp_path, scenario, loops=False)


def test_server_error_during_a_change_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.submit(plan=0)

        async def broken(*_: object, **__: object) -> None:
            raise RuntimeError("out of order")

        monkeypatch.setattr(api.services.controller, "stop", broken)
        await api.request("POST", f"/runs/{run['id']}/stop", {}, status=500)
        (record,) = await records(api, outcome="failed")
        assert (record["action"], record["target"]) == ("run.stop", run["name"])

    run_scenario(tmp_path, scenario, loops=False)


def test_change_without_a_stored_record_is_not_made(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        with closing(sqlite3.connect(tmp_path / "hopyard.db")) as database:
            database.execute(
                "CREATE TRIGGER broken BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'broken'); END"
            )
            await api.request("POST", "/tokens", {"name": "laptop"}, status=500)
            database.execute("DROP TRIGGER broken")
        created = await api.request("POST", "/tokens", {"name": "laptop"})  # the same request again
        assert (await api.request("GET", "/datasets", token=created["secret"]))["datasets"] == []
        (record,) = await records(api, action="token.create")
        assert (record["target"], record["outcome"]) == ("laptop", "done")

    run_scenario(tmp_path, scenario, loops=False)


def test_outage_during_a_change_is_recorded_and_not_retryable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(api: ApiServer) -> None:
        run, controller = await api.submit(plan=0), api.services.controller
        stop, outage = controller.stop, ServerUnavailable("the database cannot be opened", retry_after_s=1)

        async def before(*_: object, **__: object) -> None:
            raise outage

        async def between(*args: Any, **kwargs: Any) -> None:
            await stop(*args, **kwargs)
            raise outage

        for broken, later, outcomes in ((before, "1", []), (between, None, ["failed"])):
            monkeypatch.setattr(controller, "stop", broken)
            refused = await api.send("POST", f"/runs/{run['id']}/stop", {})
            assert (refused.status_code, refused.headers.get("Retry-After")) == (503, later)
            assert [record["outcome"] for record in await records(api, action="run.stop")] == outcomes

    run_scenario(tmp_path, scenario, loops=False)


def test_refused_change_of_a_read_token_is_recorded(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        created = await api.request("POST", "/tokens", {"name": "reader", "scopes": [Scope.READ]})
        run = await api.submit(plan=0)
        await api.request("DELETE", f"/runs/{run['id']}", token=created["secret"], status=403)
        (record,) = await records(api, outcome="refused")
        assert (record["user"], record["action"], record["target"]) == ("alice", "run.delete", run["name"])

    run_scenario(tmp_path, scenario, loops=False)

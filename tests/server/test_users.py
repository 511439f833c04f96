"""Users through the API: who gives tokens and takes them back, and what the second user of a server may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.server.stage import TOKEN, Stage, play

TREE = {"queues": {"research": {"admins": ["carol"], "queues": {"default": {}, "nlp": {"admins": ["dora"]}}}}}


async def added(stage: Stage, name: str) -> str:
    token: str = (await stage.ask("POST", "/users", {"name": name}, status=201))["token"]
    return token


def names(told: Any) -> list[tuple[str, bool, int]]:
    return [(user["name"], user["owner"], user["tokens"]) for user in told["users"]]


def test_a_user_comes_connects_and_goes(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        assert names(await stage.ask("GET", "/users")) == [("alice", True, 1)]
        bob = await added(stage, "bob")
        assert names(await stage.ask("GET", "/users")) == [("alice", True, 1), ("bob", False, 1)]
        assert bob.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("hopyard.db*"))
        run = await stage.ask("POST", "/runs", {"spec": {"project": "p", "roles": [{"command": ["x"]}]}}, token=bob)
        assert run["name"] == "bob/p/1"
        twice = await stage.ask("POST", "/users", {"name": "bob"}, status=409)
        assert twice["error"]["message"] == "there is a user `bob`" and twice["error"]["hints"]
        await stage.ask("POST", "/users", {"name": "../bob"}, status=422)
        mistyped = await stage.ask("DELETE", "/users/bbo", status=404)
        assert mistyped["error"]["hints"] == ["did you mean `bob`?"]
        assert (await stage.ask("DELETE", "/users/bob"))["tokens"] == 1
        await stage.ask("GET", "/runs", token=bob, status=401)
        assert (await stage.ask("GET", f"/runs/{run['id']}"))["name"] == "bob/p/1"
        again = await added(stage, "bob")
        assert again != bob and (await stage.ask("GET", "/runs", token=again))["runs"]
        await stage.ask("GET", "/runs", token=bob, status=401)

    play(tmp_path, scene, loops=False)


def test_only_the_owner_deals_with_users_and_stays(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        bob = await added(stage, "bob")
        for method, path, body in (("GET", "/users", None), ("POST", "/users", {"name": "eve"}), ("DELETE", "/users/bob", None)):
            refused = await stage.ask(method, path, body, token=bob, status=403)
            assert refused["error"]["message"] == "only alice, who owns this server, lists, adds and removes users"
        refused = await stage.ask("DELETE", "/users/alice", status=403)
        assert refused["error"]["message"] == "alice owns this server and stays"
        assert names(await stage.ask("GET", "/users", token=TOKEN)) == [("alice", True, 1), ("bob", False, 1)]

    play(tmp_path, scene, loops=False)

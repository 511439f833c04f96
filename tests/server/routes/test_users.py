"""Users through the API: issuing and revoking tokens, and the permissions of a second user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopyard.server.authentication import hash_token
from tests.server.api_server import TOKEN, ApiServer, run_scenario

TREE = {"queues": {"research": {"admins": ["carol"], "queues": {"default": {}, "nlp": {"admins": ["dora"]}}}}}


async def add_user(api: ApiServer, name: str) -> str:
    token: str = (await api.request("POST", "/users", {"name": name}, status=201))["token"]
    return token


def names(response: Any) -> list[tuple[str, bool, int]]:
    return [(user["name"], user["owner"], user["tokens"]) for user in response["users"]]


def test_user_is_added_connects_and_is_removed(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        assert names(await api.request("GET", "/users")) == [("alice", True, 1)]
        bob = await add_user(api, "bob")
        assert names(await api.request("GET", "/users")) == [("alice", True, 1), ("bob", False, 1)]
        run = await api.request(
            "POST", "/runs", {"spec": {"project": "p", "roles": [{"command": ["x"]}]}}, token=bob
        )
        assert run["name"] == "bob/p/1"
        twice = await api.request("POST", "/users", {"name": "bob"}, status=409)
        assert twice["error"]["message"] == "user `bob` already exists" and twice["error"]["hints"]
        await api.request("POST", "/users", {"name": "../bob"}, status=422)
        mistyped = await api.request("DELETE", "/users/bbo", status=404)
        assert mistyped["error"]["hints"] == ["did you mean `bob`?"]
        assert (await api.request("DELETE", "/users/bob"))["tokens"] == 1
        await api.request("GET", "/runs", token=bob, status=401)
        assert (await api.request("GET", f"/runs/{run['id']}"))["name"] == "bob/p/1"
        for name in ("bob", "Bob"):
            await api.request("POST", "/users", {"name": name}, status=409)
        await api.request("POST", "/users", {"name": "carol", "returning": True}, status=404)
        again = (await api.request("POST", "/users", {"name": "bob", "returning": True}, status=201))["token"]
        assert again != bob and (await api.request("GET", "/runs", token=again))["runs"]
        await api.request("GET", "/runs", token=bob, status=401)

        names_.append(bob)

    names_: list[str] = []
    run_scenario(tmp_path, scenario, loops=False)
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("hopyard.db*"))
    assert hash_token(names_[0]).encode() not in stored  # it was taken back
    assert b"bob" in stored and names_[0].encode() not in stored


def test_only_the_owner_manages_users_and_cannot_be_removed(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = await add_user(api, "bob")
        for method, path, body in (
            ("GET", "/users", None),
            ("POST", "/users", {"name": "eve"}),
            ("DELETE", "/users/bob", None),
        ):
            refused = await api.request(method, path, body, token=bob, status=403)
            assert (
                refused["error"]["message"]
                == "only the owner of this server, alice, lists, adds and removes users"
            )
        refused = await api.request("DELETE", "/users/alice", status=403)
        assert refused["error"]["message"] == "alice owns this server and cannot be removed"
        assert names(await api.request("GET", "/users", token=TOKEN)) == [
            ("alice", True, 1),
            ("bob", False, 1),
        ]

    run_scenario(tmp_path, scenario, loops=False)


async def refused(api: ApiServer, token: str, method: str, path: str, body: Any = None, **query: Any) -> str:
    result = (await api.request(method, path, body, token=token, status=403, **query))["error"]
    assert result["code"] == "forbidden" and result["hints"]
    message: str = result["message"]
    return message


def test_run_of_another_user_cannot_be_stopped(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.request("PUT", "/queues", {"tree": TREE})
        bob, carol, dora = [await add_user(api, name) for name in ("bob", "carol", "dora")]
        run = await api.start_run(queue="default")
        at = f"/runs/{run['id']}"
        message = await refused(api, bob, "POST", at + "/stop", {})
        assert message == f"`bob` cannot end or delete run {run['name']}; allowed users: alice, carol"
        for token in (bob, dora):  # dora administers the sibling queue
            await refused(api, token, "POST", at + "/stop", {})
            await refused(api, token, "DELETE", at, force=1)
        assert (await api.request("GET", at, token=bob))["phase"] in ("starting", "running")
        # she administers the queue above it
        await api.request("POST", at + "/stop", {"grace_s": 0}, token=carol)
        assert (await api.request("GET", at))["phase"] in ("stopping", "cancelled")

    run_scenario(tmp_path, scenario)


def test_submitter_owner_and_administrators_stop_a_run(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.request("PUT", "/queues", {"tree": TREE})
        bob, dora = await add_user(api, "bob"), await add_user(api, "dora")
        request = {"spec": {"project": "p", "roles": [{"command": ["x"]}], "queue": "nlp"}}
        for token in (bob, dora, TOKEN):
            run = await api.request("POST", "/runs", request, token=bob)
            assert (await api.request("POST", f"/runs/{run['id']}/stop", {}, token=token))[
                "phase"
            ] == "cancelled"
            await api.request("DELETE", f"/runs/{run['id']}", token=token)
        alices = await api.submit(queue="default", plan=0)
        await refused(api, dora, "POST", f"/runs/{alices['id']}/stop", {})

    run_scenario(tmp_path, scenario, loops=False)


def test_outputs_of_a_run_are_changed_by_its_user_only(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = await add_user(api, "bob")
        run = await api.start_run()
        saved = await api.put_tree({"w": b"1"})
        wish = {"rank": 0, "step": 1, "manifest": saved}
        attempt = f"/attempts/{run['id']}.1"
        assert "allowed users: alice" in await refused(api, bob, "POST", attempt + "/checkpoints", wish)
        await refused(api, bob, "POST", attempt + "/artifact", {"manifest": saved})
        await refused(api, bob, "POST", attempt + "/lock", {"lock": saved})
        await api.sync(run, [("stdout", 0, b"forged")], token=bob, status=403)
        await api.sync(run, [("stdout", 0, b"true")], token=api.run_token(run))
        await api.request("POST", attempt + "/checkpoints", wish)
        await refused(api, bob, "POST", f"/runs/{run['id']}/checkpoints/1/keep")
        assert (
            len((await api.request("GET", f"/runs/{run['id']}/checkpoints", token=bob))["checkpoints"]) == 1
        )
        fork = await api.request(
            "POST", f"/runs/{run['id']}/fork", {"checkpoint": "newest"}, token=bob, status=201
        )
        assert fork["name"] == "bob/p/1"

    run_scenario(tmp_path, scenario)


def test_user_cannot_stop_the_server_or_change_datasets_of_others(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = await add_user(api, "bob")
        assert (
            await refused(api, bob, "POST", "/shutdown", {"runs": "stop"})
            == "only the owner of this server, alice, ends it"
        )
        await refused(api, bob, "POST", "/sweep")
        assert not api.shutdown_requested.is_set()
        first = await api.push_dataset("mnist")
        manifest = await api.put_tree({"b.txt": b"bob"})
        await api.request("POST", "/datasets/mnist/versions", {"manifest": manifest}, token=bob)
        message = await refused(api, bob, "DELETE", "/datasets/mnist")
        assert message == "version 1 of `mnist` was pushed by alice; users allowed to delete it: alice"
        await refused(api, bob, "DELETE", "/datasets/mnist", version=first["number"])
        assert (await api.request("DELETE", "/datasets/mnist", token=bob, version=2))["deleted"] == 1
        await api.request("DELETE", "/datasets/other", token=bob, status=404)
        assert (await api.request("DELETE", "/datasets/mnist"))["deleted"] == 1

    run_scenario(tmp_path, scenario, loops=False)


def test_checkpoint_of_another_user_is_foreign_unless_trusted(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = (await api.request("POST", "/users", {"name": "bob"}))["token"]
        run = await api.start_run()
        saved = await api.put_tree({"w": b"1"})
        await api.request(
            "POST", f"/attempts/{run['id']}.1/checkpoints", {"rank": 0, "step": 3, "manifest": saved}
        )

        async def fork(token: str, **options: Any) -> tuple[bool, bool]:
            created = await api.request(
                "POST", f"/runs/{run['id']}/fork", {"checkpoint": "newest", **options}, token=token
            )
            again = await api.request(
                "POST",
                f"/runs/{run['id']}/fork",
                {"checkpoint": "newest", "id": created["id"], **options},
                token=token,
            )
            assert again["name"] == created["name"], "a retry"
            await api.wait_until(lambda: f"{created['id']}.1" in api.engine.launches)
            return created["spec"]["resume"]["foreign"], api.engine.launches[f"{created['id']}.1"].replicas[
                0
            ].foreign

        assert await fork(TOKEN) == (False, False)
        assert await fork(bob) == (True, True)
        assert await fork(bob, trust=True) == (False, False)
        assert (await api.request("GET", "/status", token=bob))["user"] == "bob"

        async def resumed(token: str, run_id: str, manifest: str) -> bool:
            spec = {
                "project": "p",
                "roles": [{"command": ["x"]}],
                "resume": {"run": run_id, "step": 3, "manifest": manifest},
            }
            created = await api.request("POST", "/runs", {"spec": spec}, token=token)
            return bool(created["spec"]["resume"]["foreign"])

        own = await api.request(
            "POST", "/runs", {"spec": {"project": "p", "roles": [{"command": ["x"]}]}}, token=bob
        )
        await api.wait_until(lambda: f"{own['id']}.1" in api.engine.launches)
        mine = await api.put_tree({"w": b"2"})
        await api.request(
            "POST",
            f"/attempts/{own['id']}.1/checkpoints",
            {"rank": 0, "step": 3, "manifest": mine},
            token=bob,
        )
        assert not await resumed(bob, own["id"], mine)
        assert await resumed(bob, own["id"], saved), "another user's checkpoint with the name of an own run"
        assert await resumed(bob, run["id"], mine)
        began = await api.request("POST", f"/runs/{run['id']}/fork", {"checkpoint": "newest"}, token=bob)
        assert await resumed(bob, began["id"], saved), (
            "the start checkpoint of a run is not its own checkpoint"
        )

    run_scenario(tmp_path, scenario)

"""Users through the API: who gives tokens and takes them back, and what the second user of a server may
do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopyard.server.authentication import hash_token
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
        run = await stage.ask(
            "POST", "/runs", {"spec": {"project": "p", "roles": [{"command": ["x"]}]}}, token=bob
        )
        assert run["name"] == "bob/p/1"
        twice = await stage.ask("POST", "/users", {"name": "bob"}, status=409)
        assert twice["error"]["message"] == "there is a user `bob`" and twice["error"]["hints"]
        await stage.ask("POST", "/users", {"name": "../bob"}, status=422)
        mistyped = await stage.ask("DELETE", "/users/bbo", status=404)
        assert mistyped["error"]["hints"] == ["did you mean `bob`?"]
        assert (await stage.ask("DELETE", "/users/bob"))["tokens"] == 1
        await stage.ask("GET", "/runs", token=bob, status=401)
        assert (await stage.ask("GET", f"/runs/{run['id']}"))["name"] == "bob/p/1"
        for name in ("bob", "Bob"):
            await stage.ask("POST", "/users", {"name": name}, status=409)
        await stage.ask("POST", "/users", {"name": "carol", "returning": True}, status=404)
        again = (await stage.ask("POST", "/users", {"name": "bob", "returning": True}, status=201))["token"]
        assert again != bob and (await stage.ask("GET", "/runs", token=again))["runs"]
        await stage.ask("GET", "/runs", token=bob, status=401)

        kept.append(bob)

    kept: list[str] = []
    play(tmp_path, scene, loops=False)
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("hopyard.db*"))
    assert hash_token(kept[0]).encode() not in stored  # it was taken back
    assert b"bob" in stored and kept[0].encode() not in stored


def test_only_the_owner_deals_with_users_and_stays(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        bob = await added(stage, "bob")
        for method, path, body in (
            ("GET", "/users", None),
            ("POST", "/users", {"name": "eve"}),
            ("DELETE", "/users/bob", None),
        ):
            refused = await stage.ask(method, path, body, token=bob, status=403)
            assert (
                refused["error"]["message"]
                == "only the owner of this server, alice, lists, adds and removes users"
            )
        refused = await stage.ask("DELETE", "/users/alice", status=403)
        assert refused["error"]["message"] == "alice owns this server and cannot be removed"
        assert names(await stage.ask("GET", "/users", token=TOKEN)) == [("alice", True, 1), ("bob", False, 1)]

    play(tmp_path, scene, loops=False)


async def refused(stage: Stage, token: str, method: str, path: str, body: Any = None, **query: Any) -> str:
    told = (await stage.ask(method, path, body, token=token, status=403, **query))["error"]
    assert told["code"] == "forbidden" and told["hints"]
    message: str = told["message"]
    return message


def test_another_users_run_is_not_for_everybody_to_end(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.ask("PUT", "/queues", {"tree": TREE})
        bob, carol, dora = [await added(stage, name) for name in ("bob", "carol", "dora")]
        run = await stage.started(queue="default")
        at = f"/runs/{run['id']}"
        told = await refused(stage, bob, "POST", at + "/stop", {})
        assert told == f"`bob` cannot end or delete run {run['name']}; allowed users: alice, carol"
        for token in (bob, dora):  # dora administers the queue beside it
            await refused(stage, token, "POST", at + "/stop", {})
            await refused(stage, token, "DELETE", at, force=1)
        assert (await stage.ask("GET", at, token=bob))["phase"] in ("starting", "running")
        # she administers the queue above it
        await stage.ask("POST", at + "/stop", {"grace_s": 0}, token=carol)
        assert (await stage.ask("GET", at))["phase"] in ("stopping", "cancelled")

    play(tmp_path, scene)


def test_who_submitted_may_end_and_so_may_the_owner_and_administrators(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.ask("PUT", "/queues", {"tree": TREE})
        bob, dora = await added(stage, "bob"), await added(stage, "dora")
        wanted = {"spec": {"project": "p", "roles": [{"command": ["x"]}], "queue": "nlp"}}
        for token in (bob, dora, TOKEN):
            run = await stage.ask("POST", "/runs", wanted, token=bob)
            assert (await stage.ask("POST", f"/runs/{run['id']}/stop", {}, token=token))[
                "phase"
            ] == "cancelled"
            await stage.ask("DELETE", f"/runs/{run['id']}", token=token)
        alices = await stage.submit(queue="default", plan=0)
        await refused(stage, dora, "POST", f"/runs/{alices['id']}/stop", {})

    play(tmp_path, scene, loops=False)


def test_what_a_run_wrote_is_its_users_alone_to_change(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        bob = await added(stage, "bob")
        run = await stage.started()
        saved = await stage.put_tree({"w": b"1"})
        wish = {"rank": 0, "step": 1, "manifest": saved}
        attempt = f"/attempts/{run['id']}.1"
        assert "allowed users: alice" in await refused(stage, bob, "POST", attempt + "/checkpoints", wish)
        await refused(stage, bob, "POST", attempt + "/artifact", {"manifest": saved})
        await refused(stage, bob, "POST", attempt + "/lock", {"lock": saved})
        await stage.sync(run, [("stdout", 0, b"forged")], token=bob, status=403)
        await stage.sync(run, [("stdout", 0, b"true")], token=stage.token_of(run))
        await stage.ask("POST", attempt + "/checkpoints", wish)
        await refused(stage, bob, "POST", f"/runs/{run['id']}/checkpoints/1/keep")
        assert len((await stage.ask("GET", f"/runs/{run['id']}/checkpoints", token=bob))["checkpoints"]) == 1
        fork = await stage.ask(
            "POST", f"/runs/{run['id']}/fork", {"checkpoint": "newest"}, token=bob, status=201
        )
        assert fork["name"] == "bob/p/1"

    play(tmp_path, scene)


def test_the_server_and_what_others_pushed_stay(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        bob = await added(stage, "bob")
        assert (
            await refused(stage, bob, "POST", "/shutdown", {"runs": "stop"})
            == "only the owner of this server, alice, ends it"
        )
        await refused(stage, bob, "POST", "/sweep")
        assert not stage.ended.is_set()
        first = await stage.dataset("mnist")
        manifest = await stage.put_tree({"b.txt": b"bob"})
        await stage.ask("POST", "/datasets/mnist/versions", {"manifest": manifest}, token=bob)
        told = await refused(stage, bob, "DELETE", "/datasets/mnist")
        assert told == "version 1 of `mnist` was pushed by alice; users allowed to delete it: alice"
        await refused(stage, bob, "DELETE", "/datasets/mnist", version=first["number"])
        assert (await stage.ask("DELETE", "/datasets/mnist", token=bob, version=2))["deleted"] == 1
        await stage.ask("DELETE", "/datasets/other", token=bob, status=404)
        assert (await stage.ask("DELETE", "/datasets/mnist"))["deleted"] == 1

    play(tmp_path, scene, loops=False)


def test_a_checkpoint_of_another_user_is_foreign_unless_it_is_trusted(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        bob = (await stage.ask("POST", "/users", {"name": "bob"}))["token"]
        run = await stage.started()
        saved = await stage.put_tree({"w": b"1"})
        await stage.ask(
            "POST", f"/attempts/{run['id']}.1/checkpoints", {"rank": 0, "step": 3, "manifest": saved}
        )

        async def fork(token: str, **said: Any) -> tuple[bool, bool]:
            made = await stage.ask(
                "POST", f"/runs/{run['id']}/fork", {"checkpoint": "newest", **said}, token=token
            )
            again = await stage.ask(
                "POST",
                f"/runs/{run['id']}/fork",
                {"checkpoint": "newest", "id": made["id"], **said},
                token=token,
            )
            assert again["name"] == made["name"], "a retry"
            await stage.until(lambda: f"{made['id']}.1" in stage.engine.launches)
            return made["spec"]["resume"]["foreign"], stage.engine.launches[f"{made['id']}.1"].replicas[
                0
            ].foreign

        assert await fork(TOKEN) == (False, False)
        assert await fork(bob) == (True, True)
        assert await fork(bob, trust=True) == (False, False)
        assert (await stage.ask("GET", "/status", token=bob))["user"] == "bob"

        async def resumed(token: str, run_id: str, manifest: str) -> bool:
            spec = {
                "project": "p",
                "roles": [{"command": ["x"]}],
                "resume": {"run": run_id, "step": 3, "manifest": manifest},
            }
            made = await stage.ask("POST", "/runs", {"spec": spec}, token=token)
            return bool(made["spec"]["resume"]["foreign"])

        own = await stage.ask(
            "POST", "/runs", {"spec": {"project": "p", "roles": [{"command": ["x"]}]}}, token=bob
        )
        await stage.until(lambda: f"{own['id']}.1" in stage.engine.launches)
        mine = await stage.put_tree({"w": b"2"})
        await stage.ask(
            "POST",
            f"/attempts/{own['id']}.1/checkpoints",
            {"rank": 0, "step": 3, "manifest": mine},
            token=bob,
        )
        assert not await resumed(bob, own["id"], mine)
        assert await resumed(bob, own["id"], saved), (
            "another user's checkpoint under the name of a run of one's own"
        )
        assert await resumed(bob, run["id"], mine)
        began = await stage.ask("POST", f"/runs/{run['id']}/fork", {"checkpoint": "newest"}, token=bob)
        assert await resumed(bob, began["id"], saved), "what a run began with is not what it saved"

    play(tmp_path, scene)

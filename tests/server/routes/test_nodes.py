"""Nodes and pools through the API: what is in use of them, and who may take them out of service."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hopyard.domain.ids import PoolName
from hopyard.server.authentication import hash_token
from hopyard.testing.fake_engine import ReplicaScript
from tests.server.stage import NODE, Stage, play, role

BOB = "hop_" + "b" * 43


def test_what_is_in_use_of_a_node_and_of_its_pool(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.nodes = [replace(NODE, extras={"fpga": 4})]
        await stage.until(lambda: stage.ask("GET", "/nodes/box"))
        part = await stage.started(roles=[role(gpu_milli=250, cpu_milli=500)])
        whole = await stage.started(roles=[role(gpus=1, memory_bytes=1024)], queue="default")
        told = await stage.ask("GET", "/nodes/box")
        shares = told["node"]["used"]
        assert sorted(shares["gpu_milli"]) == [250, 1000] and shares["gpus"] == [0, 1]
        assert (shares["cpu_milli"], shares["memory_bytes"]) == (1500, 1024)
        assert [(run["id"], run["ranks"], run["preemptible"], run["stopping"]) for run in told["runs"]] == [
            (part["id"], [0], True, False),
            (whole["id"], [0], True, False),
        ]
        assert (await stage.ask("GET", "/nodes"))["nodes"] == [told["node"]]
        (pool,) = (await stage.ask("GET", "/pools"))["pools"]
        assert (pool["name"], pool["nodes"], pool["open"], pool["cpu_milli"]) == ("default", 1, 1, 8000)
        assert pool["gpus"] == [{"model": "A100", "milli": 2000, "used_milli": 1250}]

    play(tmp_path, scene)


def test_nothing_starts_on_a_cordoned_node_until_it_is_open_again(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        told = await stage.ask("POST", "/nodes/box/cordon", {"reason": "new fans"})
        assert (told["cordoned"], told["cordon_reason"]) == (True, "new fans")
        waits = await stage.submit()
        assert waits["phase"] == "queued"
        assert (await stage.ask("GET", "/pools"))["pools"][0]["open"] == 0
        assert not (await stage.ask("POST", "/nodes/box/uncordon"))["cordoned"]
        await stage.until(lambda: f"{waits['id']}.1" in stage.engine.launches)

    play(tmp_path, scene)


def test_draining_asks_runs_to_make_room_except_those_that_never_do(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.script_of = lambda _attempt, _rank: ReplicaScript(
            timedelta(0), timedelta(days=1), save_time=timedelta(days=1)
        )
        polite, stubborn = await stage.started(), await stage.started(preemptible=False)
        told = await stage.ask("POST", "/nodes/box/drain", {"reason": "new fans"})
        assert (told["node"]["cordoned"], told["asked"], told["left"]) == (
            True,
            [polite["name"]],
            [stubborn["name"]],
        )
        assert (await stage.ask("GET", f"/runs/{polite['id']}"))["phase"] == "stopping"
        assert (await stage.ask("GET", f"/runs/{stubborn['id']}"))["phase"] != "stopping"
        there = {run["id"]: run["stopping"] for run in (await stage.ask("GET", "/nodes/box"))["runs"]}
        assert there == {polite["id"]: True, stubborn["id"]: False}
        told = await stage.ask("POST", "/nodes/box/drain", {"all": True})
        assert stubborn["name"] in told["asked"]

    play(tmp_path, scene)


def test_only_the_owner_takes_nodes_out_of_service(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.parts.access.add_token("bob", hash_token(BOB), now=datetime.now(UTC), name="first")
        for method, path, body in (
            ("POST", "/cordon", {}),
            ("POST", "/uncordon", None),
            ("POST", "/drain", {}),
            ("DELETE", "", None),
        ):
            refused = await stage.ask(method, f"/nodes/box{path}", body, token=BOB, status=403)
            assert (
                refused["error"]["code"] == "forbidden"
                and "only the owner of this server, alice" in refused["error"]["message"]
            )
        assert not (await stage.ask("GET", "/nodes/box", token=BOB))["node"]["cordoned"]

    play(tmp_path, scene)


def test_unknown_and_lost_nodes(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        refused = await stage.ask("GET", "/nodes/bax", status=404)
        assert refused["error"]["hints"] == ["did you mean `box`?"]
        for path, body in (("/cordon", {}), ("/uncordon", None)):
            await stage.ask("POST", f"/nodes/bax{path}", body, status=404)
        await stage.ask("DELETE", "/nodes/box", status=409)
        stage.engine.nodes = [replace(NODE, id=NODE.id.replace("box", "new"), pool=PoolName("spare"))]  # type: ignore[arg-type]
        await stage.started()  # somebody looks at the engine again
        await stage.until(lambda: stage.send("GET", "/nodes/new"))
        await stage.until(lambda: _lost(stage))
        await stage.ask("DELETE", "/nodes/box")
        await stage.ask("GET", "/nodes/box", status=404)
        assert [pool["name"] for pool in (await stage.ask("GET", "/pools"))["pools"]] == ["spare"]

    play(tmp_path, scene)


async def _lost(stage: Stage) -> bool:
    nodes = {node["id"]: node["ready"] for node in (await stage.ask("GET", "/nodes"))["nodes"]}
    return nodes == {"box": False, "new": True}

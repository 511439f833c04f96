"""Nodes and pools through the API: their usage, and the permissions to cordon, drain and remove them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hopyard.domain.ids import PoolName
from hopyard.server.authentication import hash_token
from hopyard.testing.fake_engine import ReplicaScript
from tests.server.api_server import NODE, ApiServer, role, run_scenario

BOB = "hop_" + "b" * 43


def test_node_and_pool_show_used_resources(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        api.engine.nodes = [replace(NODE, extras={"fpga": 4})]
        await api.wait_until(lambda: api.request("GET", "/nodes/box"))
        shared = await api.start_run(roles=[role(gpu_milli=250, cpu_milli=500)])
        exclusive = await api.start_run(roles=[role(gpus=1, memory_bytes=1024)], queue="default")
        response = await api.request("GET", "/nodes/box")
        shares = response["node"]["used"]
        assert sorted(shares["gpu_milli"]) == [250, 1000] and shares["gpus"] == [0, 1]
        assert (shares["cpu_milli"], shares["memory_bytes"]) == (1500, 1024)
        assert [
            (run["id"], run["ranks"], run["preemptible"], run["stopping"]) for run in response["runs"]
        ] == [
            (shared["id"], [0], True, False),
            (exclusive["id"], [0], True, False),
        ]
        assert (await api.request("GET", "/nodes"))["nodes"] == [response["node"]]
        (pool,) = (await api.request("GET", "/pools"))["pools"]
        assert (pool["name"], pool["nodes"], pool["open"], pool["cpu_milli"]) == ("default", 1, 1, 8000)
        assert pool["gpus"] == [{"model": "A100", "milli": 2000, "used_milli": 1250}]

    run_scenario(tmp_path, scenario)


def test_cordoned_node_starts_no_run_until_uncordoned(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        response = await api.request("POST", "/nodes/box/cordon", {"reason": "new fans"})
        assert (response["cordoned"], response["cordon_reason"]) == (True, "new fans")
        waits = await api.submit()
        assert waits["phase"] == "queued"
        assert (await api.request("GET", "/pools"))["pools"][0]["open"] == 0
        assert not (await api.request("POST", "/nodes/box/uncordon"))["cordoned"]
        await api.wait_until(lambda: f"{waits['id']}.1" in api.engine.launches)

    run_scenario(tmp_path, scenario)


def test_drain_preempts_preemptible_runs_only(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        api.engine.script_of = lambda _attempt, _rank: ReplicaScript(
            timedelta(0), timedelta(days=1), save_time=timedelta(days=1)
        )
        preemptible, fixed = await api.start_run(), await api.start_run(preemptible=False)
        response = await api.request("POST", "/nodes/box/drain", {"reason": "new fans"})
        assert (response["node"]["cordoned"], response["asked"], response["left"]) == (
            True,
            [preemptible["name"]],
            [fixed["name"]],
        )
        assert (await api.request("GET", f"/runs/{preemptible['id']}"))["phase"] == "stopping"
        assert (await api.request("GET", f"/runs/{fixed['id']}"))["phase"] != "stopping"
        stopping = {run["id"]: run["stopping"] for run in (await api.request("GET", "/nodes/box"))["runs"]}
        assert stopping == {preemptible["id"]: True, fixed["id"]: False}
        response = await api.request("POST", "/nodes/box/drain", {"all": True})
        assert fixed["name"] in response["asked"]

    run_scenario(tmp_path, scenario)


def test_only_the_owner_cordons_drains_and_removes_nodes(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.services.access.add_token("bob", hash_token(BOB), now=datetime.now(UTC), name="first")
        for method, path, body in (
            ("POST", "/cordon", {}),
            ("POST", "/uncordon", None),
            ("POST", "/drain", {}),
            ("DELETE", "", None),
        ):
            refused = await api.request(method, f"/nodes/box{path}", body, token=BOB, status=403)
            assert (
                refused["error"]["code"] == "forbidden"
                and "only the owner of this server, alice" in refused["error"]["message"]
            )
        assert not (await api.request("GET", "/nodes/box", token=BOB))["node"]["cordoned"]

    run_scenario(tmp_path, scenario)


def test_unknown_and_lost_nodes(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        refused = await api.request("GET", "/nodes/bax", status=404)
        assert refused["error"]["hints"] == ["did you mean `box`?"]
        for path, body in (("/cordon", {}), ("/uncordon", None)):
            await api.request("POST", f"/nodes/bax{path}", body, status=404)
        await api.request("DELETE", "/nodes/box", status=409)
        api.engine.nodes = [replace(NODE, id=NODE.id.replace("box", "new"), pool=PoolName("spare"))]  # type: ignore[arg-type]
        await api.start_run()  # the controller observes the engine again
        await api.wait_until(lambda: api.send("GET", "/nodes/new"))
        await api.wait_until(lambda: _lost(api))
        await api.request("DELETE", "/nodes/box")
        await api.request("GET", "/nodes/box", status=404)
        assert [pool["name"] for pool in (await api.request("GET", "/pools"))["pools"]] == ["spare"]

    run_scenario(tmp_path, scenario)


async def _lost(api: ApiServer) -> bool:
    nodes = {node["id"]: node["ready"] for node in (await api.request("GET", "/nodes"))["nodes"]}
    return nodes == {"box": False, "new": True}

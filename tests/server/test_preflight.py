"""Reports of failed checks: who may send them, and when they cordon a node."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from hopyard.testing.fake_engine import ReplicaScript
from tests.server.api_server import ApiServer, role, run_scenario

PREPARING = ReplicaScript(prepare_time=timedelta(days=1), run_time=timedelta(days=1))
ROLE = role(cpu_milli=100)


async def report(
    api: ApiServer, run: Any, *, status: int, token: str = "", check: str = "gpu", key: str = ""
) -> Any:
    launch = api.engine.launches[f"{run['id']}.1"].replicas[0]
    return await api.request(
        "POST",
        f"/attempts/{run['id']}.1/replicas/0/preflight",
        {"key": key or launch.preflight.key, "check": check, "found": "GPU 0 does not answer"},
        token=token or api.run_token(run),
        status=status,
    )


async def node_state(api: ApiServer) -> tuple[bool, str]:
    (node,) = (await api.request("GET", "/nodes"))["nodes"]
    return node["cordoned"], node["cordon_reason"]


def test_two_attempts_with_failures_of_the_node_cordon_it(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        first, second, third = [await api.start_run(roles=[ROLE]) for _ in range(3)]
        await report(api, first, status=200)
        await report(api, first, status=200)
        assert await node_state(api) == (False, ""), "one attempt counts once"
        await report(api, second, status=200, check="disk")
        assert await node_state(api) == (False, ""), "a full disk is no reason"
        await report(api, third, status=200)
        reason = "preflight failed in 2 attempts within 6 hours, last `gpu`: GPU 0 does not answer"
        assert await node_state(api) == (True, reason)
        await api.request("POST", "/nodes/box/uncordon", {})
        await report(api, first, status=200)
        assert await node_state(api) == (False, ""), "earlier failures no longer count"

    run_scenario(tmp_path, scenario, script=PREPARING)


def test_only_a_replica_that_still_prepares_can_report(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        first, second = [await api.start_run(roles=[ROLE]) for _ in range(2)]
        await report(api, first, status=403, key="ab" * 32)
        await report(api, first, status=403, token=api.run_token(second))
        other_key = api.engine.launches[f"{second['id']}.1"].replicas[0].preflight.key
        await report(api, first, status=403, key=other_key)
        await api.sync(first, [], phase="running")
        await report(api, first, status=409)
        await report(api, second, status=200)
        assert await node_state(api) == (False, "")

    run_scenario(tmp_path, scenario, script=PREPARING)


def test_off_sends_no_keys_and_pairs_are_those_that_train(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        def preflight(run: Any) -> Any:
            return [replica.preflight for replica in api.engine.launches[f"{run['id']}.1"].replicas]

        (off,) = preflight(await api.start_run(roles=[ROLE], preflight="off"))
        assert (off.checks, off.key, off.secret, off.ranks) == ("off", "", "", ())
        roles = [{**ROLE, "name": "worker", "replicas": 2}, {**ROLE, "name": "judge", "essential": False}]
        gang = preflight(await api.start_run(roles=roles))
        assert [each.ranks for each in gang] == [(0, 1)] * 3
        assert len({each.key for each in gang}) == 3
        assert len({each.secret for each in gang}) == 1
        assert {each.checks for each in gang} == {"pairs"}
        mixed = [{**ROLE, "name": "worker", "launcher": "torchrun"}, {**ROLE, "name": "loader"}]
        checks = [each.checks for each in preflight(await api.start_run(roles=mixed))]
        assert checks == ["full", "full"], "a ring without the loader would wait for ever"
        assert preflight(await api.start_run(roles=roles, preflight="node"))[0].ranks == ()

    run_scenario(tmp_path, scenario, script=PREPARING)

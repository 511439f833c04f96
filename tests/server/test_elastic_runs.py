"""A run that may be smaller than it would like to be: as large as it is placed, and its replicas know."""

from __future__ import annotations

from pathlib import Path

from tests.server.api_server import ApiServer, role, run_scenario


def test_elastic_gang_is_launched_as_large_as_fits(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        chief = {**role(), "name": "chief"}
        run = await api.start_run(
            roles=[chief, {**role(gpus=1), "name": "worker", "replicas": 4, "min_replicas": 1}]
        )
        launch = api.engine.launches[f"{run['id']}.1"]
        assert [(r.rank, r.role, r.role_rank, r.world_size) for r in launch.replicas] == [
            (0, "chief", 0, 3),
            (1, "worker", 0, 3),
            (2, "worker", 1, 3),
        ]
        assert [len(assignment.gpus) for assignment in launch.placement.assignments] == [0, 1, 1]
        response = await api.request("GET", f"/runs/{run['id']}")
        assert response["attempt"]["counts"] == [1, 2]

    run_scenario(tmp_path, scenario)


def test_elastic_gang_resumes_with_another_size_from_the_same_checkpoint(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(roles=[{**role(gpus=1), "replicas": 2, "min_replicas": 1}])
        assert api.engine.launches[f"{run['id']}.1"].replicas[0].world_size == 2
        saved = await api.put_tree({"state": b"weights"}, token=api.run_token(run))
        await api.request(
            "POST",
            f"/attempts/{run['id']}.1/checkpoints",
            {"rank": 0, "step": 4, "manifest": saved},
            token=api.run_token(run),
        )
        other = await api.submit(roles=[role(gpus=1)], priority=100)
        await api.services.controller.preempt(run["id"], "for the test")
        await api.wait_until(lambda: f"{run['id']}.2" in api.engine.launches)
        again = api.engine.launches[f"{run['id']}.2"]
        assert f"{other['id']}.1" in api.engine.launches
        assert [replica.world_size for replica in again.replicas] == [1]
        assert again.replicas[0].restore is not None and again.replicas[0].restore.step == 4

    run_scenario(tmp_path, scenario)

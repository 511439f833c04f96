"""A run that may be smaller than it would like to be: as large as it is placed, and its replicas know."""

from __future__ import annotations

from pathlib import Path

from tests.server.stage import Stage, play, role


def test_an_elastic_gang_is_launched_as_large_as_it_fits(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        chief = {**role(), "name": "chief"}
        run = await stage.started(
            roles=[chief, {**role(gpus=1), "name": "worker", "replicas": 4, "min_replicas": 1}]
        )
        launch = stage.engine.launches[f"{run['id']}.1"]
        assert [(r.rank, r.role, r.role_rank, r.world_size) for r in launch.replicas] == [
            (0, "chief", 0, 3),
            (1, "worker", 0, 3),
            (2, "worker", 1, 3),
        ]
        assert [len(assignment.gpus) for assignment in launch.placement.assignments] == [0, 1, 1]
        told = await stage.ask("GET", f"/runs/{run['id']}")
        assert told["attempt"]["counts"] == [1, 2]

    play(tmp_path, scene)


def test_resumed_with_another_size_it_starts_from_the_same_checkpoint(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started(roles=[{**role(gpus=1), "replicas": 2, "min_replicas": 1}])
        assert stage.engine.launches[f"{run['id']}.1"].replicas[0].world_size == 2
        saved = await stage.put_tree({"state": b"weights"}, token=stage.token_of(run))
        await stage.ask(
            "POST",
            f"/attempts/{run['id']}.1/checkpoints",
            {"rank": 0, "step": 4, "manifest": saved},
            token=stage.token_of(run),
        )
        other = await stage.submit(roles=[role(gpus=1)], priority=100)
        await stage.parts.controller.preempt(run["id"], "for the test")
        await stage.until(lambda: f"{run['id']}.2" in stage.engine.launches)
        again = stage.engine.launches[f"{run['id']}.2"]
        assert f"{other['id']}.1" in stage.engine.launches
        assert [replica.world_size for replica in again.replicas] == [1]
        assert again.replicas[0].restore is not None and again.replicas[0].restore.step == 4

    play(tmp_path, scene)

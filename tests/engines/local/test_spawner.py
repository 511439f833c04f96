"""The spawner by itself, and a replica without it."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hopyard.domain.ids import AttemptId
from hopyard.domain.replica import StopOrder
from hopyard.domain.resources import Gpu
from hopyard.engines.local.node_detection import LocalNodeSettings
from hopyard.engines.local.spawner import SpawnerClient
from hopyard.errors import LaunchFailed
from hopyard.testing.engine_contract import WAITING_SCRIPT
from tests.engines.local.engine_fixture import SPAWNER, LocalEngineFixture
from tests.replica.conftest import RunScenario


def test_missing_folder_starts_no_process(tmp_path: Path) -> None:
    async def whole() -> None:
        link = SpawnerClient(SPAWNER)
        with pytest.raises(LaunchFailed, match="could not be started"):
            await link.spawn([tmp_path / "nothing"])
        assert await link.spawn([]) == []
        await link.close()

    asyncio.run(whole())


def test_broken_spawner_is_reported() -> None:
    async def whole() -> None:
        for command in (("/no/such/program",), (sys.executable, "-c", "raise SystemExit(1)")):
            with pytest.raises(LaunchFailed, match="spawner"):
                await SpawnerClient(command).start()

    asyncio.run(whole())


def test_running_replica_is_not_started_twice(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT)
        state = await fixture.wait_until_running("a.1")
        link = SpawnerClient(SPAWNER)
        assert await link.spawn([fixture.folder("a.1")], adopt=True) == [None]
        await link.close()
        by_hand = [sys.executable, "-m", "hopyard.replica", str(fixture.folder("a.1"))]
        done = await asyncio.to_thread(subprocess.run, by_hand, check=False, timeout=60)
        assert done.returncode == 0
        assert fixture.state("a.1") == state
        await fixture.engine.stop(AttemptId("a.1"), StopOrder(30.0))
        await fixture.wait_exits("a.1")

    run_scenario(scenario)


def test_replicas_see_only_their_gpus(run_scenario: RunScenario) -> None:
    declared = LocalNodeSettings(gpus=tuple(Gpu(index, "A100") for index in range(4)))

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch(
            "a.1", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.umask(0))", gpus=(1, 3)
        )
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]
        visible_gpus, umask = fixture.sink.stream("a.1", 0, "stdout").split()
        assert visible_gpus == b"1,3"
        assert int(umask) != 0o077, "what the replica keeps private is no rule for the script"

    run_scenario(scenario, nodes=(declared,))


def test_replica_descriptor_limit_is_independent_of_spawner(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", "print('first')")
        await fixture.wait_exits("a.1")
        spawner = fixture.engine._spawner.pid  # type: ignore[attr-defined]
        few, most = 24, resource.prlimit(spawner, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(spawner, resource.RLIMIT_NOFILE, (few, most))
        await fixture.launch("b.1", WAITING_SCRIPT)
        state = await fixture.wait_until_running("b.1")
        assert resource.prlimit(state.pid, resource.RLIMIT_NOFILE)[0] > few
        await fixture.engine.stop(AttemptId("b.1"), StopOrder(30.0))
        await fixture.wait_exits("b.1")

    run_scenario(scenario)

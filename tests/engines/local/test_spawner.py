"""The spawner by itself, and a replica without it."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from hopyard.domain.ids import AttemptId
from hopyard.domain.resources import Gpu
from hopyard.engines.local.node_detection import LocalNodeSettings
from hopyard.engines.local.spawner import SpawnerClient
from hopyard.errors import LaunchFailed
from hopyard.testing.engine_contract import WAITING_SCRIPT
from tests.engines.local.bench import SPAWNER, LocalBench
from tests.replica.conftest import Play


def test_a_folder_that_is_not_there_starts_nothing(tmp_path: Path) -> None:
    async def whole() -> None:
        link = SpawnerClient(SPAWNER)
        with pytest.raises(LaunchFailed, match="could not be started"):
            await link.spawn([tmp_path / "nothing"])
        assert await link.spawn([]) == []
        await link.close()

    asyncio.run(whole())


def test_a_spawner_that_does_not_work_is_told() -> None:
    async def whole() -> None:
        for command in (("/no/such/program",), (sys.executable, "-c", "raise SystemExit(1)")):
            with pytest.raises(LaunchFailed, match="spawner"):
                await SpawnerClient(command).start()

    asyncio.run(whole())


def test_a_living_replica_is_not_started_twice(play: Play) -> None:
    async def scenario(bench: LocalBench) -> None:
        await bench.launch("a.1", WAITING_SCRIPT)
        state = await bench.running("a.1")
        link = SpawnerClient(SPAWNER)
        assert await link.spawn([bench.folder("a.1")], adopt=True) == [None]
        await link.close()
        by_hand = [sys.executable, "-m", "hopyard.replica", str(bench.folder("a.1"))]
        done = await asyncio.to_thread(subprocess.run, by_hand, check=False, timeout=60)
        assert done.returncode == 0
        assert bench.state("a.1") == state
        await bench.engine.stop(AttemptId("a.1"), grace=timedelta(seconds=30))
        await bench.wait_exits("a.1")

    play(scenario)


def test_gpus_are_shown_to_whom_they_belong(play: Play) -> None:
    declared = LocalNodeSettings(gpus=tuple(Gpu(index, "A100") for index in range(4)))

    async def scenario(bench: LocalBench) -> None:
        await bench.launch(
            "a.1", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.umask(0))", gpus=(1, 3)
        )
        assert [ended.reason for ended in await bench.wait_exits("a.1")] == ["finished"]
        shown, umask = bench.sink.stream("a.1", 0, "stdout").split()
        assert shown == b"1,3"
        assert int(umask) != 0o077, "what the replica keeps private is no rule for the script"

    play(scenario, node=declared)


def test_a_replica_has_descriptors_though_its_spawner_has_few(play: Play) -> None:
    async def scenario(bench: LocalBench) -> None:
        await bench.launch("a.1", "print('first')")
        await bench.wait_exits("a.1")
        spawner = bench.engine._spawner.pid  # type: ignore[attr-defined]
        few, most = 24, resource.prlimit(spawner, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(spawner, resource.RLIMIT_NOFILE, (few, most))
        await bench.launch("b.1", WAITING_SCRIPT)
        state = await bench.running("b.1")
        assert resource.prlimit(state.pid, resource.RLIMIT_NOFILE)[0] > few
        await bench.engine.stop(AttemptId("b.1"), grace=timedelta(seconds=30))
        await bench.wait_exits("b.1")

    play(scenario)

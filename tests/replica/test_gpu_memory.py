"""Several runs on one GPU: each receives its memory share, and a run that exceeds its share is killed
alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

from hopyard.domain.resources import Gpu, Resources
from hopyard.engines.local.node_detection import LocalNodeSettings
from hopyard.replica.gpu_memory import GpuMemoryLimit
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario

GIB = 2**30
CARDS = LocalNodeSettings(gpus=(Gpu(0, "A100", 40 * GIB), Gpu(1, "A100", 40 * GIB)))
NAMES = (
    "CUDA_VISIBLE_DEVICES",
    "HOPYARD_GPU_SHARE",
    "HOPYARD_GPU_MEMORY",
    "HOPYARD_EXTRAS",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
)
SAYS = f"import json, os; print(json.dumps({{n: os.environ.get(n) for n in {NAMES!r}}}))"


def test_replicas_on_shared_gpu_receive_their_memory_share(run_scenario: RunScenario) -> None:
    async def reported_environment(
        fixture: LocalEngineFixture, attempt: str, resources: Resources, gpus: tuple[int, ...], milli: int
    ) -> list[str | None]:
        launch = await fixture.make_launch(attempt, SAYS, SAYS, resources=resources, gpus=gpus)
        shared = tuple(replace(assignment, gpu_milli=milli) for assignment in launch.placement.assignments)
        await fixture.engine.launch(replace(launch, placement=replace(launch.placement, assignments=shared)))
        assert all(ended.is_success for ended in await fixture.wait_exits(attempt))
        first, second = (json.loads(fixture.sink.stream(attempt, rank, "stdout")) for rank in (0, 1))
        assert first == second
        return list(first.values())

    async def scenario(fixture: LocalEngineFixture) -> None:
        small = Resources(cpu_milli=100)
        half = await reported_environment(fixture, "half.1", replace(small, gpu_milli=500), (1,), 500)
        assert half == ["1", "0.5", str(20 * GIB), "{}", "0.450"]
        memory = await reported_environment(
            fixture, "memory.1", replace(small, gpu_memory_bytes=10 * GIB, extras=(("fpga", 2),)), (0,), 250
        )
        assert memory == ["0", "0.25", str(10 * GIB), '{"fpga": 2}', "0.225"]
        whole = await reported_environment(fixture, "whole.1", replace(small, gpus=2), (0, 1), 1000)
        assert whole == ["0,1", None, None, "{}", None]

    run_scenario(scenario, nodes=(CARDS,))


def test_only_gpu_memory_of_own_processes_counts() -> None:
    script = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import os; print(os.getpid(), "
        "flush=True); input()'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        used: dict[int, int] = {}

        def usage(card: int) -> Mapping[int, int]:
            return used if card == 1 else {}

        watch = GpuMemoryLimit(20 * GIB, (0, 1), usage)
        assert watch.check() is None
        # a neighbour that takes too much is not ours to end
        used |= {os.getpid() + 10**6: 39 * GIB, grandchild: 20 * GIB}
        assert watch.check() is None
        used |= {child.pid: GIB}
        assert watch.check() == "out of GPU memory: used 21.0 GiB of its 20.0 GiB on GPU 1"
        child.communicate(b"\n")


def test_gpu_memory_is_not_enforced_without_driver() -> None:
    assert GpuMemoryLimit(1, (97,)).check() is None

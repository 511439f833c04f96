"""A gang trains together as with torchrun."""

from __future__ import annotations

import importlib.util

import pytest

from hopyard.domain.resources import Resources
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario

# It exits by os._exit: the test is about the meeting and the end of replicas, and PyTorch, taking gloo's
# threads
DDP = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group('gloo')
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.randn(8, 4)).sum().backward()
gradient = [round(float(g), 4) for g in model.module.weight.grad.flatten()]
print(dist.get_rank(), dist.get_world_size(), gradient)
dist.barrier()
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_two_replicas_train_as_gang(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", DDP, DDP, resources=Resources(1000))
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished", "finished"]
        outputs = [fixture.sink.stream("a.1", rank, "stdout").decode().split(maxsplit=2) for rank in (0, 1)]
        assert [words[:2] for words in outputs] == [["0", "2"], ["1", "2"]]
        assert outputs[0][2] == outputs[1][2], "gradients are averaged"

    run_scenario(scenario)

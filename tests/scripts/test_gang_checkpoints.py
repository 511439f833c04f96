"""Rank 0 of a gang saves, all ranks load, as in the DDP tutorial of PyTorch, and a resumed gang continues."""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest

from tests.cli.shell import Shell
from tests.scripts.test_own_checkpoints import wait_for_line, wait_for_phase

# It exits by os._exit: the test is about files, and not about the end of gloo's threads
DDP = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, epoch = dist.get_rank(), 0
torch.manual_seed(rank)
model = torch.nn.Linear(2, 1, bias=False)
resumed = os.path.exists("model.pt")
if resumed:
    saved = torch.load("model.pt")
    model.load_state_dict(saved["model"])
    epoch = saved["epoch"] + 1
parallel = torch.nn.parallel.DistributedDataParallel(model)
print("begins at", epoch, float(model.weight.detach().sum()), flush=True)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.5)
while epoch < 3:
    optimizer.zero_grad()
    parallel(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if rank == 0:
        torch.save({"model": model.state_dict(), "epoch": epoch}, "model.pt")
    dist.barrier()
    assert torch.equal(torch.load("model.pt")["model"]["weight"], model.weight)
    dist.barrier()
    if epoch == 1 and not resumed:
        print("pid", os.getpid(), flush=True)
        time.sleep(600)
    epoch += 1
print("ends with", float(model.weight.detach().sum()), flush=True)
os._exit(0)
"""


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_gang_shares_its_checkpoint_and_continues_after_a_kill(scripts: Shell) -> None:
    scripts.write("gang.py", DDP)
    run = scripts.detach("--replicas", "2", "--cpus", "1", "gang.py")
    initial = float(wait_for_line(scripts, run, "[0] begins at 0").split()[-1])
    os.kill(int(wait_for_line(scripts, run, "[0] pid").split()[-1]), signal.SIGKILL)
    wait_for_phase(scripts, run, "failed")
    resumed = scripts.hop("resume", run)
    assert resumed.code == 0, resumed.stderr_text
    for rank in (0, 1):
        first, last = [line.split() for line in resumed.text.splitlines() if line.startswith(f"[{rank}]")]
        assert first[1:4] == ["begins", "at", "2"] and last[1:3] == ["ends", "with"]
        # two weights, three epochs, each with the gradient 1
        assert float(last[3]) == pytest.approx(initial - 2 * 3 * 0.5)

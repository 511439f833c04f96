"""Rank 0 of a gang saves, all ranks load, as in the DDP tutorial of PyTorch, and a resumed gang continues."""

from __future__ import annotations

import importlib.util

import pytest

from tests.cli.shell import Shell
from tests.scripts.attempts import METRIC_LINE, changed_params, check_board

# It exits by os._exit: the test is about files, and not about the end of gloo's threads
DDP = """
import argparse, os, signal, time, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--die", action="store_true")
args = parser.parse_args()
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
optimizer = torch.optim.SGD(parallel.parameters(), lr=args.lr)
while epoch < 3:
    optimizer.zero_grad()
    parallel(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if rank == 0:
        torch.save({"model": model.state_dict(), "epoch": epoch}, "model.pt")
    dist.barrier()
    assert torch.equal(torch.load("model.pt")["model"]["weight"], model.weight)
    print("epoch", epoch, "loss", round(abs(args.lr - 0.3) * (1 + abs(epoch - 1)), 3), flush=True)
    dist.barrier()
    if args.die and epoch == 1 and not resumed:
        os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(600)
    epoch += 1
print("ends with", float(model.weight.detach().sum()), flush=True)
os._exit(0)
"""
STUDY = """
script: gang.py
replicas: 2
resources: {cpus: 1}
metric: loss
mode: min
metric_lines: ["epoch {step} loss {loss}"]
space: {lr: [0.1, 0.2, 0.3, 0.4]}
searcher: grid
"""
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch"),
]


def test_gang_shares_its_checkpoint_continues_and_is_forked(scripts: Shell) -> None:
    scripts.write("gang.py", DDP)
    scripts.write("data/rows.txt", "rows")
    assert scripts.hop("dataset", "push", "gang", "data").code == 0
    options = ("-d", "gang", *METRIC_LINE, "--replicas", "2", "--cpus", "1")
    killed = scripts.hop("run", *options, "-p", "lr=0.5", "-p", "die=true", "gang.py")
    assert killed.code == 137 and "SIGKILL" in killed.stderr_text, killed.stderr_text
    begin = next(line for line in killed.text.splitlines() if "begins at 0" in line)
    resumed = scripts.hop("resume", "last")
    assert resumed.code == 0, resumed.stderr_text
    forked = scripts.hop("fork", "last", "-p", "lr=0.25", "-p", "die=false")
    assert forked.code == 0, forked.stderr_text
    for run, lr, epoch in ((resumed, 0.5, 2), (forked, 0.25, 0)):
        # two weights, three epochs, each with the gradient 1
        expected = float(begin.split()[-1]) - 2 * 3 * lr
        for rank in (0, 1):
            lines = [line.split() for line in run.text.splitlines() if line.startswith(f"[{rank}]")]
            assert lines[0][1:4] == ["begins", "at", str(epoch)] and lines[-1][1:3] == ["ends", "with"]
            assert float(lines[-1][3]) == pytest.approx(expected)
    assert changed_params(scripts, forked) == {"lr": [0.5, 0.25], "die": [True, False]}
    check_board(scripts, "gang", 0.5, 0.25)


@pytest.mark.slow
def test_gangs_are_the_trials_of_a_study(scripts: Shell) -> None:
    scripts.write("gang.py", DDP)
    scripts.write("study.yaml", STUDY)
    study = scripts.hop("search", "study.yaml")
    assert study.code == 0, study.stderr_text
    shown = scripts.hop("search", "show", "--json").json
    assert {trial["params"]["lr"]: trial["value"] for trial in shown["trials"]} == {
        0.1: 0.4,
        0.2: 0.2,
        0.3: 0.0,
        0.4: 0.2,
    }
    assert shown["best"] == "2"

"""Steps a second of PyTorch DDP under `hop run`, beside bare torchrun.

    python -m benchmarks.ddp_steps [--steps 300] [--processes 2] [--repeats 5]

A perceptron trains on random rows, with gloo, one thread and one process per core. Each round starts the same
script three times, in turn: by `torchrun` alone; by `hop run --launcher torchrun`; and by the same with
`hop.loop` and a call of `hop.log` in each step. Rank 0 times its steps after a warm-up, from one barrier of
all processes to the next. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Arguments, Report, alternate, main, ratio
from benchmarks.local_server import hop_command, local_server, scratch_folder
from benchmarks.peers.find import PeerPython
from hopyard.errors import SpecError

NAME = "ddp_steps"
WARM_UP = 50
MARK = "steps per second"
SCRIPT = f"""
import json, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

steps, logs = int(sys.argv[1]), sys.argv[2] == "logs"
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rows, labels = torch.randn(64, 256), torch.randint(0, 10, (64,))
loop = range({WARM_UP} + steps)
if logs:
    import hopyard as hop
    loop = hop.loop(loop, every=10**9)
for step in loop:
    if step == {WARM_UP}:
        dist.barrier()
        began = time.perf_counter()
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(rows), labels)
    loss.backward()
    optimizer.step()
    if logs:
        hop.log(loss=loss.item(), step=step)
    else:
        loss.item()
dist.barrier()
if dist.get_rank() == 0:
    print(json.dumps({{"{MARK}": steps / (time.perf_counter() - began)}}), flush=True)
dist.destroy_process_group()
"""


def measure(options: argparse.Namespace, _: PeerPython | None) -> Report:
    if importlib.util.find_spec("torch") is None:
        raise SpecError("this benchmark needs PyTorch", hints=("pip install torch",))
    settings = {"steps": options.steps, "processes": options.processes, "repeats": options.repeats}
    report = Report(NAME, settings)
    node = {"node": {"id": "box", "cpus": options.processes, "memory": "8G"}}
    with scratch_folder() as folder, local_server(folder, settings=node) as server:
        project = folder / "project"
        project.mkdir()
        temporary = folder / "tmp"  # torchrun leaves folders there
        temporary.mkdir()
        environment = {**server.environment, "TMPDIR": str(temporary)}
        (project / "train.py").write_text(SCRIPT)
        count = str(options.processes)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count]
        hop = [*hop_command(), "run", "--launcher", "torchrun", "--processes", count, "--cpus", count]

        def side(command: Sequence[str], *separator: str, mode: str) -> Callable[[], float]:
            words = [*command, "train.py", *separator, str(options.steps), mode]
            return lambda: steps_per_second(words, project, environment)

        found = alternate(
            options.repeats,
            {
                "torchrun": side(torchrun, mode="plain"),
                "hop": side(hop, "--", mode="plain"),
                "logged": side(hop, "--", mode="logs"),
            },
            warm_up=0,  # each script has its own
        )
    report.add("torchrun", "steps/s", found["torchrun"], "bound", "bare torchrun")
    report.add("hop_run", "steps/s", found["hop"], note="the same script by `hop run --launcher torchrun`")
    report.add("hop_run_logged", "steps/s", found["logged"], note="with hop.loop, and hop.log in each step")
    report.measurements.append(ratio("over_torchrun", found["hop"], found["torchrun"]))
    report.measurements.append(ratio("logged_over_torchrun", found["logged"], found["torchrun"]))
    return report


def steps_per_second(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> float:
    """Returns what rank 0 has measured. Raises RuntimeError if the command fails."""
    done = subprocess.run(
        command, cwd=folder, env=dict(environment), capture_output=True, text=True, check=False
    )
    for line in done.stdout.splitlines():
        if done.returncode == 0 and MARK in line:
            return float(json.loads(line[line.index("{") :])[MARK])
    raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, default=300, help="timed steps")
    parser.add_argument("--processes", type=int, default=2, help="processes of the training")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())

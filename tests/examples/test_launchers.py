"""The examples of launchers, run for real: several processes find each other without code of theirs."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.examples.test_examples import ROOT, ExampleHome
from tests.examples.test_examples import example_home as example_home

SMALL = ("--cpus", "0.5")


@pytest.fixture
def launchers(example_home: ExampleHome) -> Iterator[ExampleHome]:
    """In the folder of the examples, which is packed alone."""
    example_home.folder = ROOT / "examples" / "launchers"
    yield example_home
    example_home.folder = ROOT


BIN_FOLDERS = f"{Path(sys.executable).parent}:/usr/bin"
HAS_MPI = (
    importlib.util.find_spec("mpi4py") is not None and shutil.which("mpirun", path=BIN_FOLDERS) is not None
)
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and Open MPI")


@pytest.mark.torch
def test_torchrun_starts_several_processes_in_each_replica(launchers: ExampleHome) -> None:
    pytest.importorskip("torch")
    script = "torch_ddp.py"
    out = launchers.hop("run", *SMALL, "--launcher", "torchrun", "--replicas", "2", "-p", "steps=20", script)
    assert "rank 0 of 2 on worker-0" in out and "rank 1 of 2 on worker-1" in out
    run = launchers.last()
    assert run["phase"] == "succeeded" and run["latest"]["loss"][0] == 19, run["exit"]


def test_jax_finds_its_processes(launchers: ExampleHome) -> None:
    pytest.importorskip("jax")
    out = launchers.hop("run", *SMALL, "--launcher", "jax", "--replicas", "2", "jax_allgather.py")
    assert "rank 0 of 2: sum 1" in out and "rank 1 of 2: sum 1" in out


def test_replicas_pass_a_number_around_with_sockets(launchers: ExampleHome) -> None:
    assert "worker-0: 3 replicas" in launchers.hop("run", *SMALL, "--replicas", "3", "ring.py")


@needs_mpi
def test_listing_of_alchemist_runs_with_names_of_hopyard(launchers: ExampleHome) -> None:
    out = launchers.hop("run", "alchemist.yaml")
    places = ["task-1-0", "task-1-0", "task-2-0", "task-3-0"]
    assert all(f"rank {rank} of 4 on {place}: slope 3.000" in out for rank, place in enumerate(places)), out
    run = launchers.last()
    assert run["phase"] == "succeeded" and run["summary"]["slope"] == pytest.approx(3, abs=1e-3)
    assert run["spec"]["tags"]["optimizer"] == "adam"


@needs_mpi
def test_failed_rank_of_mpi_is_the_reason(launchers: ExampleHome, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "import time\nfrom mpi4py import MPI\n"
        "world = MPI.COMM_WORLD\n"
        "if world.allreduce(1) == 2 and world.Get_rank() == 1:\n    raise ValueError('boom')\n"
        "time.sleep(600)\n"
    )
    launchers.folder = tmp_path
    launchers.hop_fails("run", *SMALL, "--launcher", "mpi", "--replicas", "2", "fails.py")
    assert launchers.last()["exit"]["reason"] == "replica 1: exit code 1: ValueError: boom"


@needs_mpi
@pytest.mark.parametrize("killed", ["agent", "daemon"])
def test_gang_of_mpi_ends_with_the_programs_of_a_replica(
    launchers: ExampleHome, tmp_path: Path, killed: str
) -> None:
    (tmp_path / "waits.py").write_text(
        "import sys, time\nfrom mpi4py import MPI\n"
        "MPI.COMM_WORLD.allreduce(1)\n"
        "open(f'{sys.argv[1]}/ready{MPI.COMM_WORLD.Get_rank()}', 'w').close()\n"
        "time.sleep(600)\n"
    )
    launchers.folder = tmp_path
    options = ("--detach", *SMALL, "--launcher", "mpi", "--replicas", "2")
    launchers.hop("run", *options, "waits.py", "--", str(tmp_path))
    wait_until(lambda: all((tmp_path / f"ready{rank}").exists() for rank in range(2)))
    attempts = launchers.home.attempts
    plans = [json.loads(file.read_text()) for file in attempts.glob("*/*/mpi.json")]
    memory = [Path(plan["memory"]) for plan in plans if "waits.py" in plan["command"]]
    assert len(memory) == 2 and all(folder.is_dir() for folder in memory)
    programs = {"agent": ("hopyard.replica.launchers.mpi_agent",), "daemon": ("prted", "orted")}[killed]
    pids = [
        process.pid
        for process in processes_below(attempts)
        if any(Path(word).name in programs for word in process.cmdline())
        and process.environ()["HOPYARD_REPLICA_DIR"].endswith("/1")
    ]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: launchers.last()["ended_at"])
    run = launchers.last()
    assert run["phase"] == "failed" and run["exit"]["code"]
    if killed == "agent":
        assert run["exit"]["reason"] == "replica 1: killed by signal 9 (SIGKILL)"
    assert processes_below(attempts) == [] and not any(folder.exists() for folder in memory)


def processes_below(attempts: Path) -> list[psutil.Process]:
    """Returns the processes of scripts, and of their launchers."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOPYARD_REPLICA_DIR", "").startswith(f"{attempts}/"):
                found.append(process)
    return found


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.1)

"""The examples of launchers, run for real: several processes find each other without code of theirs."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

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

"""The commands and variables by which the processes of a gang find each other."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.launcher import Launcher, LauncherPeer
from hopyard.domain.replica import NodeContext, ReplicaSpec
from hopyard.domain.resources import Resources
from hopyard.replica.errors import PrepareFailed
from hopyard.replica.launchers.launch_command import end_launch, launch_command
from hopyard.replica.launchers.mpi_agent import failure_text
from hopyard.replica.launchers.mpi_channel import ChannelRefused, accept, connect
from hopyard.replica.launchers.mpi_master import host_lines, message_of, mpirun_variables
from hopyard.replica.launchers.mpi_plan import PLAN_FILE, memory_folder, read_plan
from hopyard.replica.launchers.torchrun import torchrun_words
from hopyard.replica.process_env import _rank_variables
from hopyard.replica.replica_dir import ReplicaDir

HOSTS = {"chief-0": "127.1.0.1", "worker-0": "127.1.0.2", "worker-1": "127.1.0.3", "ps-0": "127.1.0.4"}
HOSTS |= {"evaluator-0": "127.1.0.5"}
PORTS = {name: 5000 + index for index, name in enumerate(HOSTS)}


def make_spec(
    launcher: Launcher, name: str, peers: tuple[LauncherPeer, ...], cpu_milli: int = 1000
) -> ReplicaSpec:
    role, _, role_rank = name.rpartition("-")
    launch = ReplicaLaunch(
        AttemptId("a.1"), RunId("a"), "me/p/1", list(HOSTS).index(name), role, int(role_rank), len(HOSTS),
        ("python", "train.py"), Resources(), "http://127.0.0.1:1", "token",
        launcher=launcher, launcher_peers=peers,
    )  # fmt: skip
    node = NodeContext("local", "/home", "/home/server", 5000, hosts=HOSTS, peer_ports=PORTS)
    return ReplicaSpec(launch, node)


WORKERS = (LauncherPeer("worker", 0, 2), LauncherPeer("worker", 1, 4))
ALL = (LauncherPeer("chief", 0), LauncherPeer("worker", 0), LauncherPeer("worker", 1), LauncherPeer("ps", 0))


def test_processes_of_torchrun_meet_at_the_first_replica() -> None:
    spec = make_spec(Launcher.TORCHRUN, "worker-1", WORKERS)
    words = torchrun_words(spec, ["p", "-u", "a.py", "-m"], "/p", "/logs")
    assert words[:4] == ["/p", "-u", "-m", "torch.distributed.run"]
    assert set(words[4:-5]) == {
        "--nnodes=2", "--node-rank=1", "--nproc-per-node=4", "--master-addr=127.1.0.2", "--master-port=5001",
        "--role=worker", "--log-dir=/logs",
    }  # fmt: skip
    assert words[-5:] == ["--no-python", "p", "-u", "a.py", "-m"]


@pytest.mark.parametrize(("launcher", "ranks"), [(Launcher.TENSORFLOW, "0,3"), (Launcher.TORCHRUN, None)])
def test_process_gets_independent_ranks(launcher: Launcher, ranks: str | None) -> None:
    """Those of torchrun's processes are other numbers."""
    spec = make_spec(launcher, "worker-0", ALL)
    spec = replace(spec, launch=replace(spec.launch, independent_ranks=(0, 3)))
    assert _rank_variables(spec).get("HOPYARD_INDEPENDENT_RANKS") == ranks


def test_missing_torch_is_named_before_the_start(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(PrepareFailed, match="needs the package torch"):
        launch_command(
            make_spec(Launcher.TORCHRUN, "worker-0", WORKERS),
            ReplicaDir(Path("/a")),
            ["a"],
            interpreter=str(python),
            env={},
        )


def test_torch_of_any_folder_of_packages_is_found(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    python = tmp_path / "python"  # without packages of its own
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    spec, env = make_spec(Launcher.TORCHRUN, "worker-0", WORKERS), {"PYTHONPATH": str(tmp_path)}
    assert launch_command(spec, ReplicaDir(Path("/a")), ["a"], interpreter=str(python), env=env).words
    with pytest.raises(PrepareFailed, match="needs the package torch"):
        launch_command(spec, ReplicaDir(Path("/a")), ["a"], interpreter=str(python), env={})


@pytest.mark.parametrize(
    ("peers", "name", "cluster"),
    [
        (
            ALL,
            "ps-0",
            {
                "chief": ["127.1.0.1:5000"],
                "worker": ["127.1.0.2:5001", "127.1.0.3:5002"],
                "ps": ["127.1.0.4:5003"],
            },
        ),
        (
            (*ALL[1:3], LauncherPeer("evaluator", 0)),
            "worker-1",
            {"worker": ["127.1.0.2:5001", "127.1.0.3:5002"]},
        ),
        (
            (*ALL[1:3], LauncherPeer("evaluator", 0)),
            "evaluator-0",
            {"worker": ["127.1.0.2:5001", "127.1.0.3:5002"]},
        ),
    ],
)
def test_tensorflow_gets_the_servers_of_all_roles(
    peers: tuple[LauncherPeer, ...], name: str, cluster: dict[str, list[str]]
) -> None:
    spec = make_spec(Launcher.TENSORFLOW, name, peers)
    words, variables = launch_command(spec, ReplicaDir(Path("/a")), ["a"], interpreter="/p", env={})
    task = {"type": spec.launch.role, "index": spec.launch.role_rank}
    assert (words, json.loads(variables["TF_CONFIG"])) == (["a"], {"cluster": cluster, "task": task})


def test_jax_gets_its_coordinator() -> None:
    _, variables = launch_command(
        make_spec(Launcher.JAX, "worker-1", WORKERS), ReplicaDir(Path("/a")), ["a"], interpreter="/p", env={}
    )
    assert variables == {
        "JAX_COORDINATOR_ADDRESS": "127.1.0.2:5001",
        "JAX_COORDINATOR_BIND_ADDRESS": "0.0.0.0:5001",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
    }


def test_missing_mpirun_is_named_before_the_start(tmp_path: Path) -> None:
    spec = make_spec(Launcher.MPI, "worker-0", WORKERS)
    with pytest.raises(PrepareFailed, match=r"needs `mpirun`.*add the package openmpi"):
        launch_command(spec, ReplicaDir(tmp_path), ["a"], interpreter="/p", env={"PATH": str(tmp_path)})
    other = tmp_path / "mpirun"
    other.write_text("#!/bin/sh\necho HYDRA build details:\n")
    other.chmod(0o755)
    with pytest.raises(PrepareFailed, match=r"needs Open MPI, but .*HYDRA build details:"):
        launch_command(spec, ReplicaDir(tmp_path), ["a"], interpreter="/p", env={"PATH": str(tmp_path)})


def test_first_replica_of_mpi_is_the_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    program.chmod(0o755)
    for name, module in (("worker-0", "mpi_master"), ("worker-1", "mpi_agent")):
        spec = make_spec(Launcher.MPI, name, WORKERS)
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        words, _ = launch_command(spec, ReplicaDir(tmp_path), ["a"], interpreter="/p", env=env)
        assert words == ["/p", "-S", "-m", f"hopyard.replica.launchers.{module}"]
    monkeypatch.setenv("HOPYARD_REPLICA_DIR", str(tmp_path))
    plan = read_plan()
    assert host_lines(plan) == "127.1.0.2 slots=2\n127.1.0.3 slots=4\n", "their names do not resolve here"
    variables = mpirun_variables(plan, "/s")
    assert variables["OMPI_MCA_plm_rsh_agent"] == "/s"
    assert {variables[f"{name}_MCA_ess_base_forward_signals"] for name in ("OMPI", "PRTE")} == {"none"}
    assert (tmp_path / PLAN_FILE).stat().st_mode & 0o077 == 0, "it has the credential of the gang"
    for name in ("worker-0", "worker-1"):
        end_launch(make_spec(Launcher.MPI, name, WORKERS))


def test_message_of_mpirun_is_one_line() -> None:
    rule = "-" * 74
    lines = [rule, "There are not enough slots", "available in the system.", rule]
    assert message_of(lines) == "There are not enough slots available in the system."
    abort = [rule, "MPI_ABORT was invoked on rank 3 in communicator", "with errorcode 5.", rule]
    assert message_of(abort) == "rank 3 called MPI_Abort with error code 5"


def test_failed_rank_is_described_by_any_signal() -> None:
    assert failure_text({"rank": 2, "code": -9}) == "rank 2 was killed by signal 9 (SIGKILL)"
    assert failure_text({"rank": 2, "code": -40}) == "rank 2 was killed by signal 40 (real-time signal)"
    assert failure_text({"rank": 2, "code": 3}) == "rank 2 exited with code 3"


def test_folder_of_daemons_is_removed_with_all_files(tmp_path: Path) -> None:
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    program.chmod(0o755)
    spec = make_spec(Launcher.MPI, "worker-0", WORKERS)
    spec = replace(spec, launch=replace(spec.launch, secret=os.urandom(32).hex()))
    launch_command(spec, ReplicaDir(tmp_path), ["a"], interpreter="/p", env={"PATH": f"{tmp_path}:/bin"})
    folder = memory_folder(spec.launch.secret, "worker-0")
    assert folder.stat().st_mode & 0o077 == 0
    (folder / "agent").mkdir()
    (folder / "agent" / "segment").touch()
    end_launch(spec)
    assert not folder.exists()
    end_launch(spec)


def test_only_replicas_of_the_gang_know_its_credential() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    refused: list[str] = []

    def serve() -> None:
        for _ in range(2):
            connection, _ = server.accept()
            try:
                channel, request = accept(connection, "secret")
                channel.send(b"r", request["kind"].encode())
            except ChannelRefused as error:
                refused.append(str(error))
            finally:
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = server.getsockname()[1]
    with pytest.raises(ChannelRefused, match="no replica of this gang"):
        connect("127.0.0.1", port, "another", {"kind": "start"})
    assert connect("127.0.0.1", port, "secret", {"kind": "start"}).receive() == (b"r", b"start")
    thread.join(60)
    assert refused == ["a client does not know the secret of the gang"]
    server.close()

"""torchrun: several processes of PyTorch in each replica, which meet at the first one."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from hopyard.domain.replica import ReplicaSpec
from hopyard.domain.run_environment import HOOKS_VARIABLE
from hopyard.replica.errors import PrepareFailed
from hopyard.replica.launchers.peer_addresses import own_index, peer_address

_CHECK_TIMEOUT_S = 60.0
_FIND_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


def torchrun_words(spec: ReplicaSpec, command: Sequence[str], interpreter: str, log_folder: str) -> list[str]:
    """Returns the command that starts `command` in each process of this replica. log_folder: for the error
    files of the processes; without it, torchrun leaves a folder among the machine's temporary files."""
    peers, index = spec.launch.launcher_peers, own_index(spec)
    address, port = peer_address(spec, peers[0])
    return [
        interpreter,
        "-u",
        "-m",
        "torch.distributed.run",
        f"--nnodes={len(peers)}",
        f"--node-rank={index}",
        f"--nproc-per-node={peers[index].processes}",
        f"--master-addr={address}",
        f"--master-port={port}",
        f"--role={spec.launch.role}",
        f"--log-dir={log_folder}",
        "--no-python",
        *command,
    ]


def torchrun_variables(spec: ReplicaSpec) -> dict[str, str]:
    """Returns the number of threads of each process: its share of the CPUs, unless the user set it."""
    processes, cpus = spec.launch.launcher_peers[own_index(spec)].processes, spec.launch.resources.cpu_milli
    if processes == 1 or "OMP_NUM_THREADS" in spec.launch.env:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, cpus // 1000 // processes))}


def check_torch(interpreter: str, env: Mapping[str, str]) -> None:
    """Raises PrepareFailed where the environment has no PyTorch."""
    # without the import hooks, which would take this for the script, but with all folders of packages
    variables = {**env, HOOKS_VARIABLE: "0"}
    try:
        result = subprocess.run(
            [interpreter, "-c", _FIND_TORCH],
            env=variables,
            capture_output=True,
            timeout=_CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # the start of the script reports the reason
    if result.returncode == 1:
        raise PrepareFailed(
            "the launcher torchrun needs the package torch, which the environment of the run does not have: "
            "add it to the requirements",
            code=127,
        )

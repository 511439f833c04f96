"""MPI: `mpirun` in the first replica starts the processes of all, without SSH."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from hopyard.domain.replica import ReplicaSpec
from hopyard.private_files import make_folder, remove_tree, write_atomically
from hopyard.replica.errors import PrepareFailed
from hopyard.replica.launchers.mpi_plan import PLAN_FILE, MpiPeer, MpiPlan, memory_folder
from hopyard.replica.launchers.peer_addresses import own_index, peer_address
from hopyard.replica.replica_dir import ReplicaDir

_OPEN_MPI = "Open MPI"
_CHECK_TIMEOUT_S = 60.0


def mpi_words(spec: ReplicaSpec, folder: ReplicaDir, command: Sequence[str], interpreter: str) -> list[str]:
    """Writes the plan of the gang for this replica, and returns the words of its program. The command of the
    first replica is that of all processes."""
    memory = memory_folder(spec.launch.secret, spec.launch.host_name)
    make_folder(memory)
    plan = MpiPlan(
        spec.launch.secret,
        spec.launch.host_name,
        str(memory),
        interpreter,
        list(command),
        [
            MpiPeer(peer.host_name, *peer_address(spec, peer), peer.processes)
            for peer in spec.launch.launcher_peers
        ],
    )
    write_atomically(folder.root / PLAN_FILE, plan.to_json())
    return plan.program("mpi_agent" if own_index(spec) else "mpi_master")


def remove_memory(spec: ReplicaSpec) -> None:
    """Removes what the programs of this replica left in shared memory, also after they were killed."""
    remove_tree(memory_folder(spec.launch.secret, spec.launch.host_name))


def check_mpirun(env: Mapping[str, str]) -> None:
    """Raises PrepareFailed where the environment has no `mpirun` of Open MPI."""
    program = shutil.which("mpirun", path=env.get("PATH", os.defpath))
    if program is None:
        raise PrepareFailed(
            "the launcher mpi needs `mpirun`, which is not on PATH of the run: add the package openmpi to "
            "the requirements, or install Open MPI on the node (openmpi-bin)",
            code=127,
        )
    try:
        result = subprocess.run(
            [program, "--version"],
            env=dict(env),
            capture_output=True,
            text=True,
            timeout=_CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # the start reports the reason
    if _OPEN_MPI not in result.stdout:
        name = next(iter((result.stdout or result.stderr).splitlines()), "no answer")
        raise PrepareFailed(
            f"the launcher mpi needs Open MPI, but {program} is another program ({name}): add the package "
            "openmpi to the requirements",
            code=126,
        )

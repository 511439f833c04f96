"""The command of a replica with its launcher in front of it, and the variables that the launcher sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hopyard.domain.launcher import Launcher
from hopyard.domain.replica import ReplicaSpec
from hopyard.replica.launchers import jax, mpi, tensorflow, torchrun
from hopyard.replica.replica_dir import ReplicaDir


class LaunchCommand(NamedTuple):
    """The words of the process of a replica, and variables on top of those of `process_env`."""

    words: list[str]
    variables: Mapping[str, str]


def launch_command(
    spec: ReplicaSpec,
    folder: ReplicaDir,
    command: Sequence[str],
    *,
    interpreter: str,
    env: Mapping[str, str],
) -> LaunchCommand:
    """Returns what the replica starts for this command of the user. interpreter: the Python of the run. env:
    of the process. Raises PrepareFailed where the launcher cannot work."""
    launcher, words = spec.launch.launcher, list(command)
    if launcher is Launcher.TORCHRUN:
        if not spec.launch.image:  # its packages are not those of the node
            torchrun.check_torch(interpreter, env)
        log_folder = str(folder.root / "torchrun")  # removed with the attempt
        return LaunchCommand(
            torchrun.torchrun_words(spec, words, interpreter, log_folder), torchrun.torchrun_variables(spec)
        )
    if launcher is Launcher.TENSORFLOW:
        return LaunchCommand(words, {"TF_CONFIG": tensorflow.tf_config(spec)})
    if launcher is Launcher.JAX:
        return LaunchCommand(words, jax.jax_variables(spec))
    if launcher is Launcher.MPI:
        mpi.check_mpirun(env)
        return LaunchCommand(mpi.mpi_words(spec, folder, words, interpreter), {})
    return LaunchCommand(words, {})


def end_launch(spec: ReplicaSpec) -> None:
    """Removes what the launcher left outside the folder of the replica."""
    if spec.launch.launcher is Launcher.MPI:
        mpi.remove_memory(spec)

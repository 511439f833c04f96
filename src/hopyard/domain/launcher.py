"""How the processes of a gang are started, so that their framework finds all of them."""

from __future__ import annotations

from hopyard.backports import StrEnum, dataclass


class Launcher(StrEnum):
    NONE = "none"  # each replica runs its command once, with the variables of torchrun
    TORCHRUN = "torchrun"  # several processes in each replica
    MPI = "mpi"  # `mpirun` in the first replica starts the processes of all
    TENSORFLOW = "tensorflow"  # `TF_CONFIG`
    JAX = "jax"  # what `jax.distributed.initialize()` reads

    @property
    def has_processes(self) -> bool:
        """Whether it starts several processes in each replica."""
        return self in (Launcher.TORCHRUN, Launcher.MPI)


# of TensorFlow: its servers never end by themselves
PARAMETER_SERVER_ROLE = "ps"
EVALUATOR_ROLE = "evaluator"  # likewise; it reads checkpoints, and is no part of the cluster
# of a process: `ReplicaLaunch.independent_ranks`, separated by commas
INDEPENDENT_RANKS_VARIABLE = "HOPYARD_INDEPENDENT_RANKS"


@dataclass(frozen=True, slots=True)
class LauncherPeer:
    """A replica with the same launcher. processes: the number that the launcher starts in it."""

    role: str
    role_rank: int
    processes: int = 1

    @property
    def host_name(self) -> str:
        return f"{self.role}-{self.role_rank}"

"""The rules of a role that its shape cannot state: amounts that contradict each other, and invalid names."""

from __future__ import annotations

from hopyard.config.resource_requests import check_extra
from hopyard.domain.gang import NodeSelector, Topology
from hopyard.domain.ids import check_name
from hopyard.domain.launcher import Launcher
from hopyard.domain.resources import Resources
from hopyard.domain.restart_policy import RestartMode
from hopyard.domain.run import RoleSpec
from hopyard.errors import SpecError


def check_role(role: RoleSpec, path: str) -> None:
    """Raises SpecError naming the path."""
    if role.min_replicas > role.replicas:
        raise SpecError(
            f"{path}.min_replicas: {role.min_replicas} exceeds `replicas`, {role.replicas}",
            hints=("set `min_replicas` to at most `replicas`",),
        )
    if role.processes and not role.launcher.has_processes:
        raise SpecError(
            f"{path}.processes: the launcher `{role.launcher}` starts one process in each replica",
            hints=("set `launcher` to torchrun or mpi, or more `replicas`",),
        )
    if role.launcher is Launcher.MPI and role.restart.mode is not RestartMode.NEVER:
        raise SpecError(
            f"{path}.restart: the launcher `mpi` starts and ends the processes of all replicas together",
            hints=("remove `restart`: the other replicas of a failed `mpirun` have ended",),
        )
    if role.image and role.launcher is Launcher.MPI:
        raise SpecError(
            f"{path}.launcher: `mpi` starts all processes by the Open MPI of the node, outside of containers",
            hints=("remove `image`, or use the launcher torchrun, jax or tensorflow",),
        )
    check_resources(role.resources, f"{path}.resources")
    check_node_selector(role.where, f"{path}.where")
    check_topology(role.topology, f"{path}.topology")


def check_resources(requested: Resources, path: str) -> None:
    """Raises SpecError naming the path."""
    if requested.gpu_milli and requested.gpu_memory_bytes:
        raise SpecError(
            f"{path}.gpu_memory_bytes: not allowed beside `gpu_milli`",
            hints=("set one of the two: the share follows from the memory",),
        )
    if requested.gpus and requested.is_gpu_share:
        field = "gpu_milli" if requested.gpu_milli else "gpu_memory_bytes"
        raise SpecError(
            f"{path}.{field}: a part of a GPU is not allowed beside {requested.gpus} whole GPUs",
            hints=("request whole GPUs, or a part of one GPU",),
        )
    if requested.gpu_models and not (requested.gpus or requested.is_gpu_share):
        raise SpecError(
            f"{path}.gpu_models: a model is requested, but no GPU", hints=("set `gpus` to 1 or more",)
        )
    _check_pairs(requested.extras, f"{path}.extras")
    for name, _ in requested.extras:
        check_extra(name, what=f"{path}.extras")


def check_node_selector(selector: NodeSelector, path: str) -> None:
    """Raises SpecError naming the path."""
    for index, pool in enumerate(selector.pools):
        check_name(pool, subject=f"{path}.pools.{index}")
    _check_pairs(selector.labels, f"{path}.labels")


def check_topology(topology: Topology | None, path: str) -> None:
    """Raises SpecError naming the path."""
    if topology is not None and not topology.level.strip():
        raise SpecError(
            f"{path}.level: the value is empty", hints=("`node`, or the name of a label of nodes",)
        )


def _check_pairs(pairs: tuple[tuple[str, object], ...], path: str) -> None:
    names = [name for name, _ in pairs]
    if names != sorted(set(names)):
        raise SpecError(
            f"{path}: the names are not sorted, or a name is given twice", hints=("sort them by name",)
        )

"""What of a role's request its shape on the wire cannot say: amounts that contradict each other, names that
are none."""

from __future__ import annotations

from hopyard.config.asks import check_extra
from hopyard.domain.gang import Topology, Where
from hopyard.domain.ids import check_name
from hopyard.domain.resources import Resources
from hopyard.domain.run import RoleSpec
from hopyard.errors import SpecError


def check_role(role: RoleSpec, path: str) -> None:
    """Raises SpecError naming the path."""
    if role.min_replicas > role.replicas:
        raise SpecError(
            f"{path}.min_replicas: at least {role.min_replicas} is more than at most {role.replicas}",
            hints=("an elastic role starts with any number from `min_replicas` to `replicas`",),
        )
    _check_resources(role.resources, f"{path}.resources")
    _check_where(role.where, f"{path}.where")
    check_topology(role.topology, f"{path}.topology")


def _check_resources(asked: Resources, path: str) -> None:
    if asked.gpu_milli and asked.gpu_memory_bytes:
        raise SpecError(
            f"{path}.gpu_memory_bytes: a share is given as gpu_milli already",
            hints=("give one of the two: the share follows from the memory",),
        )
    if asked.gpus and asked.shares_gpu:
        field = "gpu_milli" if asked.gpu_milli else "gpu_memory_bytes"
        raise SpecError(
            f"{path}.{field}: a part of one GPU, beside {asked.gpus} whole ones",
            hints=("ask for whole GPUs, or for a part of one",),
        )
    if asked.gpu_models and not (asked.gpus or asked.shares_gpu):
        raise SpecError(
            f"{path}.gpu_models: a model is asked for, but no GPU", hints=("set `gpus` to 1 or more",)
        )
    _check_pairs(asked.extras, f"{path}.extras")
    for name, _ in asked.extras:
        check_extra(name, what=f"{path}.extras")


def _check_where(where: Where, path: str) -> None:
    for at, pool in enumerate(where.pools):
        check_name(pool, what=f"{path}.pools.{at}")
    _check_pairs(where.labels, f"{path}.labels")


def check_topology(topology: Topology | None, path: str) -> None:
    """Raises SpecError naming the path."""
    if topology is not None and not topology.level.strip():
        raise SpecError(f"{path}.level: it names nothing", hints=("`node`, or the name of a label of nodes",))


def _check_pairs(pairs: tuple[tuple[str, object], ...], path: str) -> None:
    names = [name for name, _ in pairs]
    if names != sorted(set(names)):
        raise SpecError(
            f"{path}: the names are not in order, or one is there twice", hints=("sort them by name",)
        )

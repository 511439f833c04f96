"""The order in which roles of a gang are placed, and their slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

from hopyard.domain.gang import Gang, Role


def slice_gangs(gang: Gang, slice_size: int) -> Iterator[tuple[list[int], Gang]]:
    """The slices of consecutive ranks, each as a gang of its own that asks for no topology."""
    replicas = list(gang.replica_roles())
    for start in range(0, len(replicas), slice_size):
        piece = replicas[start : start + slice_size]
        roles: dict[int, tuple[Role, int]] = {}
        for _, role in piece:
            roles[id(role)] = role, roles.get(id(role), (role, 0))[1] + 1
        small = tuple(
            replace(role, replicas=count, min_replicas=0, topology=None) for role, count in roles.values()
        )
        yield [rank for rank, _ in piece], replace(gang, roles=small, topology=None)


MAX_PERMUTED_ROLES = 3  # roles: they may choose in six orders


def demand_key(role: Role) -> tuple[int, int, int]:
    return role.resources.gpus, role.resources.memory_bytes, role.resources.cpu_milli


def role_orders(roles: Sequence[Role]) -> list[tuple[int, ...]]:
    """Orders to try: a role that wants a certain model always before one that takes any, then by each
    resource; of few roles all."""
    if len(roles) == 1:
        return [(0,)]
    orders = []
    for weight in ("gpus", "memory_bytes", "cpu_milli"):
        key = [
            (
                not r.resources.gpu_models,
                -getattr(r.resources, weight),
                -r.resources.gpus,
                -r.resources.cpu_milli,
                i,
            )
            for i, r in enumerate(roles)
        ]
        orders.append(tuple(sorted(range(len(roles)), key=key.__getitem__)))
    others = permutations(range(len(roles))) if len(roles) <= MAX_PERMUTED_ROLES else ()
    return list(dict.fromkeys([*orders, *others]))

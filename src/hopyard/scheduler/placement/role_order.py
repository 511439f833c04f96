"""The order in which the roles of a gang are placed, and their slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

from hopyard.domain.gang import Gang, Role


def slice_gangs(gang: Gang, slice_size: int) -> Iterator[tuple[list[int], Gang]]:
    """Yields the slices of consecutive ranks, each as a gang without topology rules."""
    replicas = list(gang.replica_roles())
    for start in range(0, len(replicas), slice_size):
        members = replicas[start : start + slice_size]
        roles: dict[int, tuple[Role, int]] = {}
        for _, role in members:
            roles[id(role)] = role, roles.get(id(role), (role, 0))[1] + 1
        slice_roles = tuple(
            replace(role, replicas=count, min_replicas=0, topology=None) for role, count in roles.values()
        )
        yield [rank for rank, _ in members], replace(gang, roles=slice_roles, topology=None)


MAX_PERMUTED_ROLES = 3  # all orders are tried up to this number of roles: six for three


def demand_key(role: Role) -> tuple[int, int, int]:
    return role.resources.gpus, role.resources.memory_bytes, role.resources.cpu_milli


def role_orders(roles: Sequence[Role]) -> list[tuple[int, ...]]:
    """Returns the orders to try. A role that requests a GPU model precedes a role that accepts any. Then
    roles are ordered by each resource. For few roles, all orders are returned."""
    if len(roles) == 1:
        return [(0,)]
    orders = []
    for weight in ("gpus", "memory_bytes", "cpu_milli"):
        key = [
            (
                not role.resources.gpu_models,
                -getattr(role.resources, weight),
                -role.resources.gpus,
                -role.resources.cpu_milli,
                index,
            )
            for index, role in enumerate(roles)
        ]
        orders.append(tuple(sorted(range(len(roles)), key=key.__getitem__)))
    permuted_orders = permutations(range(len(roles))) if len(roles) <= MAX_PERMUTED_ROLES else ()
    return list(dict.fromkeys([*orders, *permuted_orders]))

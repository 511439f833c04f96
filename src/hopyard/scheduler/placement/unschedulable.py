"""Finds why a gang does not fit: into what is free, or into the empty cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from hopyard.domain.amounts import requested_amounts, total_amounts
from hopyard.domain.cluster import Node
from hopyard.domain.gang import ANY_NODE, Closeness, Gang, Role, Topology
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import NodeId
from hopyard.domain.placement_causes import (
    AlternativePlacement,
    ClosedNode,
    DomainCountShortfall,
    DomainSizeShortfall,
    FeasibleNodesClosed,
    FreeEngineShortfall,
    FreeReplicaShortfall,
    FreeRoleShortfall,
    FreeTopologyShortfall,
    MissingTopologyLabel,
    NeverFitsCause,
    NoCapacityCause,
    NodeSizeShortfall,
    NoFreeNode,
    NoMatchingNode,
    NoSchedulableNode,
    RoleDemand,
    SliceCountShortfall,
    TopologyRuleConflict,
    TopologyShortfall,
    TotalEngineShortfall,
    TotalReplicaShortfall,
    TotalRoleShortfall,
    TotalTopologyShortfall,
)
from hopyard.domain.queue import CPU, GPU, MEMORY
from hopyard.scheduler.placement.feasibility import NodeFeasibility, ReplicaRequest
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import Ints, matches
from hopyard.scheduler.placement.placement_search import PlacementSearch
from hopyard.scheduler.placement.score_cache import ScoreCache
from hopyard.scheduler.placement.shortfall import shortfalls


def why_not_reason(free: FreeResources, gang: Gang) -> HoldReason:
    """Returns the reason of `why_not` without the numbers."""
    if not free.node_table.open.any():
        return HoldReason.NO_NODES
    gang = gang.with_replica_counts([role.required_replicas for role in gang.roles])
    unconstrained = without_topology(gang)
    return (
        HoldReason.TOPOLOGY if unconstrained != gang and fits(free, unconstrained) else HoldReason.NO_CAPACITY
    )


def why_not(free: FreeResources, gang: Gang) -> NoCapacityCause:
    """Returns why the gang does not fit into the free resources, which may be smaller than the cluster."""
    if not free.node_table.open.any():
        return _no_schedulable_node(free.node_table.nodes)
    gang = gang.with_replica_counts([role.required_replicas for role in gang.roles])
    for role in gang.roles:
        if not _feasibility(free, role).fits(free).any():
            return _no_free_node(free, gang, role)
    for role in gang.roles:
        available = _total_replicas(free, role)
        if available < role.replicas:
            return FreeReplicaShortfall(role.replicas, role.resources, role.where, available)
    unconstrained = without_topology(gang)
    if unconstrained != gang and fits(free, unconstrained):
        return FreeTopologyShortfall(_topology_shortfall(free, gang))
    if len(gang.roles) > 1:
        return FreeRoleShortfall(_role_requests(gang))
    role = gang.roles[0]
    return FreeEngineShortfall(role.replicas, role.resources, role.where)


def why_never(empty_nodes: FreeResources, gang: Gang) -> NeverFitsCause:
    """Returns why the gang does not fit into these nodes (at least one) even when they are empty."""
    for role in gang.roles:
        if not _feasibility(empty_nodes, role).fits(empty_nodes).any():
            return _no_large_node(empty_nodes, gang, role)
    for role in gang.roles:
        available = _total_replicas(empty_nodes, role)
        if available < role.replicas:
            count, only = _matching_nodes(empty_nodes, role)
            return TotalReplicaShortfall(role.replicas, role.resources, role.where, count, only, available)
    unconstrained = without_topology(gang)
    if unconstrained != gang and fits(empty_nodes, unconstrained):
        return TotalTopologyShortfall(_topology_shortfall(empty_nodes, gang))
    role = gang.roles[0]
    if len(gang.roles) > 1:
        count, only = _matching_nodes(empty_nodes, role)
        return TotalRoleShortfall(_role_requests(gang), count, only, *_missing_amounts(empty_nodes, gang))
    return TotalEngineShortfall(role.replicas, role.resources, role.where)


def fits(free: FreeResources, gang: Gang) -> bool:
    """Returns whether the gang fits. A gang of several roles fits if either of two rules finds a
    placement."""
    rules = ("first-fit",) if len(gang.roles) == 1 else ("first-fit", "fragmentation")
    return any(
        PlacementSearch(free, ScoreCache(free), gang, rule, frozenset(), frozenset()).place() is not None
        for rule in rules
    )


def without_topology(gang: Gang) -> Gang:
    return replace(gang, topology=None, roles=tuple(replace(role, topology=None) for role in gang.roles))


def _no_schedulable_node(nodes: tuple[Node, ...]) -> NoSchedulableNode:
    if len(nodes) == 1:
        return NoSchedulableNode(1, ClosedNode(nodes[0].id, nodes[0].unschedulable_state))
    return NoSchedulableNode(len(nodes), _out_of_service(nodes), all(node.ready for node in nodes))


def _out_of_service(nodes: Iterable[Node]) -> ClosedNode | None:
    """Returns the first node that is out of service."""
    return next((ClosedNode(node.id, node.unschedulable_state) for node in nodes if node.trouble), None)


def _no_free_node(free: FreeResources, gang: Gang, role: Role) -> NoFreeNode | FeasibleNodesClosed:
    """Explains that no node has capacity for one replica of this role now, with the shortfall of the nearest
    capable node."""
    empty_nodes = FreeResources.of_empty_nodes(free.node_table)
    capable = np.flatnonzero(_feasibility(empty_nodes, role).fits(empty_nodes))
    if not len(capable):
        closed = [
            node for node in free.node_table.nodes if not node.schedulable and matches(role.where, node)
        ]
        return FeasibleNodesClosed(
            role.resources, role.where, all(node.ready for node in closed), _out_of_service(closed)
        )
    row = _nearest_node(role, free, capable)
    return NoFreeNode(
        role.resources,
        role.where,
        gang.size,
        _role_name(gang, role),
        free.node_table.nodes[row].id,
        shortfalls(role.resources, free, row),
    )


def _no_large_node(empty_nodes: FreeResources, gang: Gang, role: Role) -> NoMatchingNode | NodeSizeShortfall:
    """Explains that no node is large enough for one replica of this role."""
    nodes = empty_nodes.node_table.nodes
    allowed = [row for row, node in enumerate(nodes) if matches(role.where, node)]
    elsewhere = _fits_elsewhere(empty_nodes, role) if role.where != ANY_NODE else None
    if not allowed:
        return NoMatchingNode(role.where, gang.size, _role_name(gang, role), elsewhere)
    row = _nearest_node(role, empty_nodes, np.array(allowed))
    nearest = nodes[row]
    return NodeSizeShortfall(
        role.resources,
        role.where,
        gang.size,
        _role_name(gang, role),
        len(nodes),
        nearest.id,
        nearest.pool if len({node.pool for node in nodes}) > 1 else None,
        shortfalls(role.resources, empty_nodes, row),
        elsewhere,
    )


def _fits_elsewhere(empty_nodes: FreeResources, role: Role) -> AlternativePlacement | None:
    """Returns the pool, or a node without the labels, in which one replica would fit."""
    rows = np.flatnonzero(
        NodeFeasibility(empty_nodes.node_table, ReplicaRequest(role.resources, ANY_NODE)).fits(empty_nodes)
    )
    if not len(rows):
        return None
    node = empty_nodes.node_table.nodes[int(rows[0])]
    if role.where.pools and node.pool not in role.where.pools:
        return AlternativePlacement(pool=node.pool)
    return AlternativePlacement(node=node.id)


def _topology_shortfall(free: FreeResources, gang: Gang) -> TopologyShortfall:
    """Returns the topology rule that cannot be obeyed, and the available capacity."""
    ruled = [(role.topology, role.replicas, [role]) for role in gang.roles if role.topology is not None]
    ruled += [(gang.topology, gang.size, list(gang.roles))] if gang.topology is not None else []
    for rule, replicas, roles in ruled:
        ruled_roles = tuple(replace(role, topology=None) for role in roles)
        if not fits(free, replace(gang, topology=rule, roles=ruled_roles)):
            return _rule_shortfall(free, rule, replicas, roles)
    return TopologyRuleConflict(gang.size)


def _rule_shortfall(
    free: FreeResources, rule: Topology, replicas: int, roles: list[Role]
) -> TopologyShortfall:
    domains, count = free.node_table.domains(rule.level)
    capacity, in_domain = np.zeros(max(count, 1), np.int64), domains >= 0
    for role in roles:
        capacity += np.bincount(
            domains[in_domain], _replicas_per_node(free, role)[in_domain], max(count, 1)
        ).astype(np.int64)
    if not count:
        return MissingTopologyLabel(replicas, rule.level)
    if rule.rule is Closeness.SAME:
        return DomainSizeShortfall(replicas, rule.level, int(capacity.max()))
    slices = -(-replicas // rule.slice)
    if rule.rule is Closeness.SPREAD:
        return DomainCountShortfall(slices, rule.slice, rule.level, int((capacity >= rule.slice).sum()))
    return SliceCountShortfall(slices, rule.slice, rule.level, int((capacity // rule.slice).sum()))


def _nearest_node(role: Role, free: FreeResources, rows: Ints) -> int:
    """Returns the row of the node that lacks the fewest kinds of resource for one replica, and the smallest
    amounts of these."""
    request, parts = role.resources, []
    requested = [(free.cpu[rows], request.cpu_milli), (free.memory[rows], request.memory_bytes)]
    requested += [(free.extra(name, rows), amount) for name, amount in request.extras]
    parts = [np.clip(free_amounts / amount, 0, 1) for free_amounts, amount in requested if amount]
    if request.gpus or request.is_gpu_share:
        needs = free.node_table.gpu_needs(request, frozenset())[free.node_table.gpu_model[rows]]
        free_amounts = np.maximum(free.gpu[rows], 0)
        satisfied = np.count_nonzero(free_amounts >= needs, axis=1) / max(request.gpus, 1)
        parts.append(np.clip(satisfied if request.gpus else (free_amounts / needs).max(axis=1), 0, 1))
    shortfall_count = sum((part < 1 for part in parts), np.zeros(len(rows), np.int64))
    shortfall = sum((1 - part for part in parts), np.zeros(len(rows)))
    return int(rows[np.lexsort((rows, shortfall, shortfall_count))[0]])


def _feasibility(free: FreeResources, role: Role) -> NodeFeasibility:
    return NodeFeasibility(free.node_table, ReplicaRequest(role.resources, role.where))


def _replicas_per_node(free: FreeResources, role: Role) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return _feasibility(free, role).replicas_per_node(free, role.replicas)


def _total_replicas(free: FreeResources, role: Role) -> int:
    return int(_replicas_per_node(free, role).sum())


def _role_name(gang: Gang, role: Role) -> str:
    """Returns "" if the gang has a single role."""
    return role.name if len(gang.roles) > 1 else ""


def _role_requests(gang: Gang) -> tuple[RoleDemand, ...]:
    return tuple(RoleDemand(role.name, role.replicas, role.resources) for role in gang.roles)


def _matching_nodes(empty_nodes: FreeResources, role: Role) -> tuple[int, NodeId | None]:
    """Returns how many nodes the role may use, and the node if it is the only one."""
    allowed = empty_nodes.node_table.allowed_nodes(role.where)
    count = int(allowed.sum())
    return count, empty_nodes.node_table.nodes[int(allowed.argmax())].id if count == 1 else None


def _missing_amounts(empty_nodes: FreeResources, gang: Gang) -> tuple[int, int, int]:
    """Returns how much CPU, memory and GPU all schedulable nodes together lack for all replicas; 0 if they
    lack none."""
    requested = requested_amounts(gang)
    total = total_amounts(node for node in empty_nodes.node_table.nodes if node.schedulable)
    cpu, memory, gpu = (max(requested.get(name, 0) - total.get(name, 0), 0) for name in (CPU, MEMORY, GPU))
    return cpu, memory, gpu

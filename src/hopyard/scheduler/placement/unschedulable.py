"""Messages for gangs that do not fit: the request, the nearest node with its shortfall, and where the gang
would fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from hopyard.domain.amounts import requested_amounts, total_amounts
from hopyard.domain.cluster import HoldReason, Node
from hopyard.domain.gang import ANY_NODE, NODE_LEVEL, Closeness, Gang, Role, Topology
from hopyard.domain.queue import CPU, GPU, MEMORY
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.amount_text import format_bytes, format_count, format_cpus
from hopyard.scheduler.placement.feasibility import NodeFeasibility, ReplicaRequest
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import Bools, Ints, matches
from hopyard.scheduler.placement.placement_search import PlacementSearch
from hopyard.scheduler.placement.score_cache import ScoreCache
from hopyard.scheduler.placement.shortfall import format_request, format_where, shortfalls


def why_not_reason(free: FreeResources, gang: Gang) -> HoldReason:
    """Returns the reason of `why_not` without the message."""
    if not free.node_table.open.any():
        return HoldReason.NO_NODES
    gang = gang.with_replica_counts([role.required_replicas for role in gang.roles])
    loose = without_topology(gang)
    return HoldReason.TOPOLOGY if loose != gang and fits(free, loose) else HoldReason.NO_CAPACITY


def why_not(free: FreeResources, gang: Gang) -> tuple[HoldReason, str]:
    """Returns why the gang does not fit into the free resources, which may be smaller than the cluster."""
    if not free.node_table.open.any():
        return HoldReason.NO_NODES, _no_nodes_message(free)
    gang = gang.with_replica_counts([role.required_replicas for role in gang.roles])
    for role in gang.roles:
        if not _feasibility(free, role).fits(free).any():
            return HoldReason.NO_CAPACITY, _no_free_node_message(free, gang, role)
    for role in gang.roles:
        room = _total_replicas(free, role)
        if room < role.replicas:
            text = f"needs {_all_replicas_phrase(role)} at once; there is room for {room} now"
            return HoldReason.NO_CAPACITY, text
    loose = without_topology(gang)
    if loose != gang and fits(free, loose):
        return (
            HoldReason.TOPOLOGY,
            f"needs {_topology_message(free, gang)}, although there is room for it without this rule",
        )
    if len(gang.roles) > 1:
        return (
            HoldReason.NO_CAPACITY,
            f"needs {_all_roles_message(gang, '(')}; the free resources do not fit all of them",
        )
    return (
        HoldReason.NO_CAPACITY,
        f"needs {_all_replicas_phrase(gang.roles[0])} at once; no single engine has room for all of them now",
    )


def too_large_message(gang: Gang, empty_nodes: FreeResources) -> str:
    """Returns why the gang does not fit into these nodes (at least one) even when they are empty."""
    for role in gang.roles:
        if not _feasibility(empty_nodes, role).fits(empty_nodes).any():
            return _no_large_node_message(empty_nodes, gang, role)
    for role in gang.roles:
        room = _total_replicas(empty_nodes, role)
        if room < role.replicas:
            return (
                f"needs {_all_replicas_phrase(role)} at once; {_all_nodes_phrase(empty_nodes, role)} "
                f"can hold {room}"
            )
    loose = without_topology(gang)
    if loose != gang and fits(empty_nodes, loose):
        return f"needs {_topology_message(empty_nodes, gang)}"
    if len(gang.roles) > 1:
        return (
            f"needs {_all_roles_message(gang, ':')}; {_all_nodes_phrase(empty_nodes, gang.roles[0])} "
            f"cannot hold them together{_total_shortfall_message(empty_nodes, gang)}"
        )
    return f"needs {_all_replicas_phrase(gang.roles[0])} at once; no single engine can hold them"


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


def _no_nodes_message(free: FreeResources) -> str:
    nodes = free.node_table.nodes
    if not nodes:
        return "no node has joined yet"
    if len(nodes) == 1:
        return f"the only node, {nodes[0].id}, is {nodes[0].unschedulable_state}"
    if any(node.trouble for node in nodes):
        return f"no node of {len(nodes)} is open; {_out_of_service_message(nodes)}"
    return (
        f"all {len(nodes)} nodes are cordoned"
        if all(node.ready for node in nodes)
        else f"none of {len(nodes)} nodes is ready"
    )


def _out_of_service_message(nodes: Iterable[Node]) -> str:
    """Names the first node that is out of service, and why."""
    return next((f"{node.id} is {node.unschedulable_state}" for node in nodes if node.trouble), "")


def _no_free_node_message(free: FreeResources, gang: Gang, role: Role) -> str:
    """No node has room for one replica of this role now: names the shortfall of the nearest capable node."""
    whole = FreeResources.of_empty_nodes(free.node_table)
    request, where = role.resources, f" {format_where(role.where)}" if role.where != ANY_NODE else ""
    able = np.flatnonzero(_feasibility(whole, role).fits(whole))
    if not len(able):
        closed = [
            node for node in free.node_table.nodes if not node.schedulable and matches(role.where, node)
        ]
        state = "cordoned" if all(node.ready for node in closed) else "not ready"
        if any(node.trouble for node in closed):
            state = f"not open; {_out_of_service_message(closed)}"
        return f"needs {format_request(request)}{where}; the nodes with enough resources are {state}"
    row = _nearest_node(role, free, able)
    missing = shortfalls(request, free, row)
    each = (
        ""
        if gang.size == 1
        else " for each replica"
        if len(gang.roles) == 1
        else f" for each `{role.name}` replica"
    )
    asked = " and ".join(lack.requested for lack in missing) or format_request(request)
    left = " and ".join(lack.free for lack in missing) or "this queue may not use its GPUs"
    return f"needs {asked}{each}{where}; {left} on {free.node_table.nodes[row].id}"


def _no_large_node_message(empty_nodes: FreeResources, gang: Gang, role: Role) -> str:
    """No node is large enough for one replica of this role."""
    ground, request = empty_nodes.node_table, role.resources
    who = (
        "needs"
        if gang.size == 1
        else "each replica needs"
        if len(gang.roles) == 1
        else f"each `{role.name}` replica needs"
    )
    allowed = [row for row, node in enumerate(ground.nodes) if matches(role.where, node)]
    where = f" {format_where(role.where)}" if role.where != ANY_NODE else ""
    elsewhere = _alternative_pools_message(empty_nodes, role) if where else ""
    if not allowed:
        return f"{who} a node{where}; there is none{elsewhere}"
    row = _nearest_node(role, empty_nodes, np.array(allowed))
    node, missing = ground.nodes[row], shortfalls(request, empty_nodes, row)
    asked = " and ".join(lack.requested for lack in missing) or format_request(request)
    has = ", ".join(f"{lack.total} ({lack.missing})" for lack in missing)
    in_pool = f" in pool `{node.pool}`" if len({n.pool for n in ground.nodes}) > 1 else ""
    nearest = (
        f"the only node, {node.id}, has"
        if len(ground.nodes) == 1
        else f"no node has that; the nearest, {node.id}{in_pool}, has"
    )
    return f"{who} {asked} on one node{where}; {nearest} {has}{elsewhere}"


def _alternative_pools_message(empty_nodes: FreeResources, role: Role) -> str:
    """Names the pool, or the labels, with which one replica would fit."""
    rows = np.flatnonzero(
        NodeFeasibility(empty_nodes.node_table, ReplicaRequest(role.resources, ANY_NODE)).fits(empty_nodes)
    )
    if not len(rows):
        return ""
    node = empty_nodes.node_table.nodes[int(rows[0])]
    if role.where.pools and node.pool not in role.where.pools:
        return f"; it would fit in pool `{node.pool}`"
    return f"; it would fit without the labels, on {node.id}"


def _topology_message(free: FreeResources, gang: Gang) -> str:
    """Describes the topology rule that cannot be kept, and the available room."""
    ruled = [(role.topology, role.replicas, [role]) for role in gang.roles if role.topology is not None]
    ruled += [(gang.topology, gang.size, list(gang.roles))] if gang.topology is not None else []
    for rule, replicas, roles in ruled:
        alone = replace(gang, topology=None, roles=tuple(replace(role, topology=None) for role in roles))
        alone = replace(alone, topology=rule)
        if not fits(free, alone):
            return _format_topology_rule(free, rule, replicas, roles)
    return f"{format_count(gang.size, 'replica')} within its topology rules"


def _format_topology_rule(free: FreeResources, rule: Topology, replicas: int, roles: list[Role]) -> str:
    domains, count = free.node_table.domains(rule.level)
    room, inside = np.zeros(max(count, 1), np.int64), domains >= 0
    for role in roles:
        room += np.bincount(domains[inside], _replicas_per_node(free, role)[inside], max(count, 1)).astype(
            np.int64
        )
    if not count:
        return f"{format_count(replicas, 'replica')} by `{rule.level}`; no node has the label `{rule.level}`"
    if rule.rule is Closeness.SAME:
        return (
            f"{format_count(replicas, 'replica')} in one {rule.level}; no {rule.level} has room "
            f"for more than {int(room.max())}"
        )
    if rule.rule is Closeness.SPREAD:
        slices, apart = -(-replicas // rule.slice), int((room >= rule.slice).sum())
        what = "replica" if rule.slice == 1 else f"slice of {rule.slice}"
        level = "node" if rule.level == NODE_LEVEL else rule.level
        return (
            f"{slices} different {level}s with one {what} each; {apart} "
            f"{'has' if apart == 1 else 'have'} room for one"
        )
    held = int((room // rule.slice).sum())
    return (
        f"{format_count(-(-replicas // rule.slice), 'slice')} of {rule.slice}, each in one {rule.level}; "
        f"there is room for {held}"
    )


def _nearest_node(role: Role, free: FreeResources, rows: Ints) -> int:
    """Returns the node that lacks the fewest kinds of resource for one replica, and the smallest amounts of
    these."""
    request, parts = role.resources, []
    asked = [(free.cpu[rows], request.cpu_milli), (free.memory[rows], request.memory_bytes)]
    asked += [(free.extra(name, rows), amount) for name, amount in request.extras]
    parts = [np.clip(left / amount, 0, 1) for left, amount in asked if amount]
    if request.gpus or request.is_gpu_share:
        needs = free.node_table.gpu_needs(request, frozenset())[free.node_table.gpu_model[rows]]
        left = np.maximum(free.gpu[rows], 0)
        whole = np.count_nonzero(left >= needs, axis=1) / max(request.gpus, 1)
        parts.append(np.clip(whole if request.gpus else (left / needs).max(axis=1), 0, 1))
    kinds = sum((part < 1 for part in parts), np.zeros(len(rows), np.int64))
    lacking = sum((1 - part for part in parts), np.zeros(len(rows)))
    return int(rows[np.lexsort((rows, lacking, kinds))[0]])


def _feasibility(free: FreeResources, role: Role) -> NodeFeasibility:
    return NodeFeasibility(free.node_table, ReplicaRequest(role.resources, role.where))


def _replicas_per_node(free: FreeResources, role: Role) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return _feasibility(free, role).replicas_per_node(free, role.replicas)


def _total_replicas(free: FreeResources, role: Role) -> int:
    return int(_replicas_per_node(free, role).sum())


def _all_replicas_phrase(role: Role) -> str:
    where = f" {format_where(role.where)}" if role.where != ANY_NODE else ""
    return f"{format_count(role.replicas, 'replica')} with {format_request(role.resources)} each{where}"


def _all_nodes_phrase(empty_nodes: FreeResources, role: Role) -> str:
    nodes: Bools = empty_nodes.node_table.allowed_nodes(role.where)
    count = int(nodes.sum())
    return (
        empty_nodes.node_table.nodes[int(nodes.argmax())].id if count == 1 else f"all {count} nodes together"
    )


def _total_shortfall_message(empty_nodes: FreeResources, gang: Gang) -> str:
    """Returns how much all schedulable nodes together lack for all replicas; empty if only the distribution
    is the problem."""
    asked, has = (
        requested_amounts(gang),
        total_amounts(node for node in empty_nodes.node_table.nodes if node.schedulable),
    )
    missing = {name: amount - has.get(name, 0) for name, amount in asked.items()}
    parts = [f"{format_cpus(missing[CPU])} too few"] if missing.get(CPU, 0) > 0 else []
    parts += [f"{format_bytes(missing[MEMORY])} of memory too little"] if missing.get(MEMORY, 0) > 0 else []
    parts += [f"{missing[GPU] / WHOLE_GPU:g} GPUs too few"] if missing.get(GPU, 0) > 0 else []
    return f": {', '.join(parts)}" if parts else ""


def _all_roles_message(gang: Gang, opening: str) -> str:
    roles = ", ".join(
        f"{role.replicas} `{role.name}` with {format_request(role.resources)}" for role in gang.roles
    )
    return (
        f"{format_count(gang.size, 'replica')} at "
        f"once{' (' if opening == '(' else ': '}{roles}{')' if opening == '(' else ''}"
    )

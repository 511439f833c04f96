"""Sentences for gangs that do not fit: the request, the nearest node with its shortfall, and where the gang
would fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from hopyard.domain.gang import NodeSelector
from hopyard.domain.ids import NodeId
from hopyard.domain.placement_causes import (
    AlternativePlacement,
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
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.explain.amount_text import format_bytes, format_count, format_cpus
from hopyard.scheduler.explain.request_text import format_request, format_shortfall, format_where


def no_capacity_message(cause: NoCapacityCause) -> str:
    match cause:
        case NoSchedulableNode():
            return _no_schedulable_node_message(cause)
        case NoFreeNode():
            return _no_free_node_message(cause)
        case FeasibleNodesClosed():
            return _capable_nodes_closed_message(cause)
        case FreeReplicaShortfall():
            return f"needs {_replicas_phrase(cause)} at once; there is room for {cause.available} now"
        case FreeTopologyShortfall():
            return (
                f"needs {_topology_phrase(cause.shortfall)}, although there is room for it without this rule"
            )
        case FreeRoleShortfall():
            return (
                f"needs {_replica_count_phrase(cause.roles)} at once ({_roles_phrase(cause.roles)}); "
                "the free resources do not fit all of them"
            )
        case FreeEngineShortfall():
            return f"needs {_replicas_phrase(cause)} at once; no single engine has room for all of them now"
        case _:
            assert_never(cause)


def never_fits_message(cause: NeverFitsCause) -> str:
    match cause:
        case NoMatchingNode():
            subject = _subject(cause.gang_size, cause.role)
            return f"{subject} a node{_where_phrase(cause.where)}; there is none{_elsewhere(cause.elsewhere)}"
        case NodeSizeShortfall():
            return _nodes_too_small_message(cause)
        case TotalReplicaShortfall():
            return (
                f"needs {_replicas_phrase(cause)} at once; {_nodes_phrase(cause.node_count, cause.node)} "
                f"can hold {cause.available}"
            )
        case TotalTopologyShortfall():
            return f"needs {_topology_phrase(cause.shortfall)}"
        case TotalRoleShortfall():
            return (
                f"needs {_replica_count_phrase(cause.roles)} at once: {_roles_phrase(cause.roles)}; "
                f"{_nodes_phrase(cause.node_count, cause.node)} cannot hold them together"
                f"{_missing_amounts_clause(cause)}"
            )
        case TotalEngineShortfall():
            return f"needs {_replicas_phrase(cause)} at once; no single engine can hold them"
        case _:
            assert_never(cause)


def _no_schedulable_node_message(cause: NoSchedulableNode) -> str:
    count, closed = cause.node_count, cause.closed
    if not count:
        return "no node has joined yet"
    if closed is not None and count == 1:
        return f"the only node, {closed.id}, is {closed.state}"
    if closed is not None:
        return f"no node of {count} is open; {closed.id} is {closed.state}"
    return f"all {count} nodes are cordoned" if cause.ready else f"none of {count} nodes is ready"


def _no_free_node_message(cause: NoFreeNode) -> str:
    each = (
        ""
        if cause.gang_size == 1
        else f" for each `{cause.role}` replica"
        if cause.role
        else " for each replica"
    )
    texts = [format_shortfall(shortfall) for shortfall in cause.shortfalls]
    requested = " and ".join(text.requested for text in texts) or format_request(cause.request)
    free = " and ".join(text.free for text in texts) or "this queue may not use its GPUs"
    return f"needs {requested}{each}{_where_phrase(cause.where)}; {free} on {cause.node}"


def _capable_nodes_closed_message(cause: FeasibleNodesClosed) -> str:
    state = "cordoned" if cause.ready else "not ready"
    if cause.out_of_service is not None:
        state = f"not open; {cause.out_of_service.id} is {cause.out_of_service.state}"
    return (
        f"needs {format_request(cause.request)}{_where_phrase(cause.where)}; the nodes with enough "
        f"resources are {state}"
    )


def _nodes_too_small_message(cause: NodeSizeShortfall) -> str:
    texts = [format_shortfall(shortfall) for shortfall in cause.shortfalls]
    requested = " and ".join(text.requested for text in texts) or format_request(cause.request)
    has = ", ".join(f"{text.total} ({text.missing})" for text in texts)
    in_pool = f" in pool `{cause.pool}`" if cause.pool is not None else ""
    nearest = (
        f"the only node, {cause.node}, has"
        if cause.node_count == 1
        else f"no node has that; the nearest, {cause.node}{in_pool}, has"
    )
    subject = _subject(cause.gang_size, cause.role)
    return (
        f"{subject} {requested} on one node{_where_phrase(cause.where)}; {nearest} {has}"
        f"{_elsewhere(cause.elsewhere)}"
    )


def _topology_phrase(shortfall: TopologyShortfall) -> str:
    match shortfall:
        case MissingTopologyLabel(replicas, level):
            return f"{format_count(replicas, 'replica')} by `{level}`; no node has the label `{level}`"
        case DomainSizeShortfall(replicas, level, largest_room):
            return (
                f"{format_count(replicas, 'replica')} in one {level}; no {level} has room for more than "
                f"{largest_room}"
            )
        case DomainCountShortfall(slices, slice_size, level, available):
            unit = "replica" if slice_size == 1 else f"slice of {slice_size}"
            has = "has" if available == 1 else "have"
            return f"{slices} different {level}s with one {unit} each; {available} {has} room for one"
        case SliceCountShortfall(slices, slice_size, level, available):
            return (
                f"{format_count(slices, 'slice')} of {slice_size}, each in one {level}; there is room for "
                f"{available}"
            )
        case TopologyRuleConflict(replicas):
            return f"{format_count(replicas, 'replica')} within its topology rules"
        case _:
            assert_never(shortfall)


def _subject(gang_size: int, role: str) -> str:
    if gang_size == 1:
        return "needs"
    return f"each `{role}` replica needs" if role else "each replica needs"


def _elsewhere(elsewhere: AlternativePlacement | None) -> str:
    if elsewhere is None:
        return ""
    if elsewhere.pool is not None:
        return f"; it would fit in pool `{elsewhere.pool}`"
    return f"; it would fit without the labels, on {elsewhere.node}"


def _where_phrase(where: NodeSelector) -> str:
    text = format_where(where)
    return f" {text}" if text else ""


def _replicas_phrase(
    cause: FreeReplicaShortfall | FreeEngineShortfall | TotalReplicaShortfall | TotalEngineShortfall,
) -> str:
    count = format_count(cause.replicas, "replica")
    return f"{count} with {format_request(cause.request)} each{_where_phrase(cause.where)}"


def _nodes_phrase(count: int, node: NodeId | None) -> str:
    return f"all {count} nodes together" if node is None else node


def _replica_count_phrase(roles: Sequence[RoleDemand]) -> str:
    return format_count(sum(role.replicas for role in roles), "replica")


def _roles_phrase(roles: Sequence[RoleDemand]) -> str:
    return ", ".join(f"{role.replicas} `{role.role}` with {format_request(role.request)}" for role in roles)


def _missing_amounts_clause(cause: TotalRoleShortfall) -> str:
    parts = [f"{format_cpus(cause.missing_cpu_milli)} too few"] if cause.missing_cpu_milli else []
    if cause.missing_memory_bytes:
        parts.append(f"{format_bytes(cause.missing_memory_bytes)} of memory too little")
    if cause.missing_gpu_milli:
        parts.append(f"{cause.missing_gpu_milli / WHOLE_GPU:g} GPUs too few")
    return f": {', '.join(parts)}" if parts else ""

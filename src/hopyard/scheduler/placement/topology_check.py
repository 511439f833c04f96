"""Checks whether a placement obeys the topology rules of its gang. Used on results of heuristics, and to
validate placements from other sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hopyard.domain.cluster import Node
from hopyard.domain.gang import NODE_LEVEL, Assignment, Closeness, Gang, Topology
from hopyard.domain.ids import NodeId


def obeys_topology(gang: Gang, assignments: Sequence[Assignment], nodes: Sequence[Node]) -> bool:
    """Returns whether slices are whole, and domains are the same or different as the gang or a role demands.

    Does not check how few domains NEAR and BALANCED use, because this depends on what was free.
    """
    by_id = {node.id: node for node in nodes}
    if gang.topology is not None and not _obeys_rule(gang.topology, assignments, by_id):
        return False
    start = 0
    for role in gang.roles:
        if role.topology is not None and not _obeys_rule(
            role.topology, assignments[start : start + role.replicas], by_id
        ):
            return False
        start += role.replicas
    return True


def _obeys_rule(rule: Topology, assignments: Sequence[Assignment], nodes: Mapping[NodeId, Node]) -> bool:
    domains = [
        a.node if rule.level == NODE_LEVEL else nodes[a.node].labels.get(rule.level) for a in assignments
    ]
    if None in domains:
        return False
    if rule.rule is Closeness.SAME:
        return len(set(domains)) <= 1
    slices = [set(domains[i : i + rule.slice]) for i in range(0, len(domains), rule.slice)]
    if any(len(slice) > 1 for slice in slices):
        return False
    return rule.rule is not Closeness.SPREAD or len(set().union(*slices)) == len(slices)

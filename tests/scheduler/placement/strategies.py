"""Random nodes and gangs for the laws of placement, and an independent count of what placements allocate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from hopyard.domain.cluster import Node
from hopyard.domain.gang import (
    ANY_NODE,
    NODE_LEVEL,
    Assignment,
    Closeness,
    Gang,
    NodeSelector,
    Placement,
    Role,
    Topology,
)
from hopyard.domain.ids import GangId, NodeId, PoolName
from hopyard.domain.resources import Gpu, Resources
from tests.scheduler.cluster_model import GIB, T0

CARDS = (("A100", 80 * GIB), ("T4", 16 * GIB), ("GPU", 0))
LEVELS = (NODE_LEVEL, "rack", "zone")


@st.composite
def nodes(draw: st.DrawFn, max_count: int = 6, min_count: int = 0) -> list[Node]:
    drawn = []
    for number in range(draw(st.integers(min_count, max_count))):
        kinds = draw(st.sampled_from([CARDS[:1], CARDS[1:2], CARDS[:2], CARDS]))
        indices = draw(st.lists(st.integers(0, 7), unique=True, max_size=4))
        rack = draw(st.sampled_from([None, "r1", "r2", "r3"]))
        drawn.append(
            Node(
                NodeId(f"n{number}"),
                draw(st.sampled_from(["local", "local", "local", "ray"])),
                1000 * draw(st.integers(0, 8)),
                GIB * draw(st.integers(0, 16)),
                tuple(Gpu(index, *draw(st.sampled_from(kinds))) for index in indices),
                PoolName(draw(st.sampled_from(["p", "q"]))),
                ready=draw(st.integers(0, 6)) > 0,
                labels={"zone": "z1" if rack == "r1" else "z2", "rack": rack} if rack else {},
                cordoned=draw(st.integers(0, 8)) == 0,
                extras=draw(st.sampled_from([{}, {}, {"fpga": 2}])),
                holds=frozenset(draw(st.sampled_from([(), ("mnist",), ("mnist", "torch")]))),
            )
        )
    return drawn


@st.composite
def requests(draw: st.DrawFn) -> Resources:
    kind = draw(st.sampled_from(["none", "whole", "whole", "share", "share", "memory"]))
    return Resources(
        draw(st.sampled_from([0, 500, 1000, 3000])),
        draw(st.sampled_from([0, GIB, 5 * GIB])),
        gpus=draw(st.integers(1, 3)) if kind == "whole" else 0,
        gpu_models=() if kind == "none" else draw(st.sampled_from([(), (), ("a100",), ("T4", "A100")])),
        gpu_milli=draw(st.sampled_from([100, 250, 400, 700])) if kind == "share" else 0,
        gpu_memory_bytes=draw(st.sampled_from([4 * GIB, 20 * GIB])) if kind == "memory" else 0,
        extras=draw(st.sampled_from([(), (), (), (("fpga", 1),), (("tape", 1),)])),
    )


node_selectors = st.sampled_from(
    [
        ANY_NODE,
        ANY_NODE,
        ANY_NODE,
        NodeSelector(pools=(PoolName("p"),)),
        NodeSelector(labels=(("rack", "r2"),)),
        NodeSelector((PoolName("q"),), (("zone", "z2"),)),
    ]
)
topologies = st.builds(Topology, st.sampled_from(LEVELS), st.sampled_from(Closeness), st.integers(1, 3))


@st.composite
def gangs(draw: st.DrawFn, name: str = "g") -> Gang:
    roles = []
    for number in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        count = draw(st.integers(1, 5))
        min_replicas = draw(st.sampled_from([0, 0, 1, count]))
        rule = draw(st.none() | st.none() | topologies)
        roles.append(Role(f"r{number}", count, draw(requests()), min_replicas, draw(node_selectors), rule))
    inputs = draw(st.sampled_from([(), (), ("mnist",), ("mnist", "torch")]))
    return Gang(
        GangId(name),
        tuple(roles),
        T0,
        topology=draw(st.none() | st.none() | topologies),
        input_digests=inputs,
    )


def reverse_gpus(node: Node) -> Node:
    return replace(node, gpus=tuple(reversed(node.gpus)))


class AllocationCounter:
    """Counts what placements allocate on nodes, GPU by GPU."""

    def __init__(self, machines: Iterable[Node]) -> None:
        self.nodes = {node.id: node for node in machines}
        self.used: Counter[tuple[str, ...]] = Counter()

    def add(self, placement: Placement) -> None:
        for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=True):
            request, node = role.resources, self.nodes[assignment.node]
            self.used[node.id, "cpu"] += request.cpu_milli
            self.used[node.id, "memory"] += request.memory_bytes
            for name, amount in request.extras:
                self.used[node.id, "extra", name] += amount
            for index in assignment.gpus:
                self.used[node.id, "gpu", str(index)] += assignment.gpu_milli

    def overcommitted(self) -> list[str]:
        """Returns a text for each resource of which more is allocated than exists."""
        errors = []
        for (name, resource, *key), amount in self.used.items():
            node = self.nodes[NodeId(name)]
            if resource == "gpu":
                total = 1000 if key[0] in {str(gpu.index) for gpu in node.gpus} else 0
            elif resource == "extra":
                total = node.extras.get(key[0], 0)
            else:
                total = node.cpu_milli if resource == "cpu" else node.memory_bytes
            if amount > total:
                errors.append(f"{name} {resource} {key}: {amount} of {total}")
        return errors


def placement_error(gang: Gang, placement: Placement, machines: Iterable[Node]) -> str | None:
    """Returns why a placement of this gang is invalid, or None."""
    by_id = {node.id: node for node in machines}
    counts = [role.replicas for role in placement.gang.roles]
    if any(
        not role.required_replicas <= count <= role.replicas
        for role, count in zip(gang.roles, counts, strict=True)
    ):
        return f"{counts} replicas"
    if [a.rank for a in placement.assignments] != list(range(sum(counts))):
        return "ranks"
    if len({by_id[a.node].engine for a in placement.assignments}) > 1:
        return "two engines"
    for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=True):
        error = _node_error(role, assignment, by_id[assignment.node])
        if error:
            return f"{error}: {assignment}"
    start = 0
    for role in placement.gang.roles:
        if role.topology and (
            error := topology_error(
                role.topology, placement.assignments[start : start + role.replicas], by_id
            )
        ):
            return error
        start += role.replicas
    return topology_error(gang.topology, placement.assignments, by_id) if gang.topology else None


def _node_error(role: Role, assignment: Assignment, node: Node) -> str | None:
    request = role.resources
    if not node.ready or node.cordoned:
        return "closed"
    if (role.where.pools and node.pool not in role.where.pools) or any(
        node.labels.get(k) != v for k, v in role.where.labels
    ):
        return "not where it may be"
    cards = [gpu for gpu in node.gpus if gpu.index in assignment.gpus]
    models = {model.lower() for model in request.gpu_models}
    if models and any(gpu.model.lower() not in models for gpu in cards):
        return "model"
    count = request.gpus or int(request.is_gpu_share)
    if len(cards) != count or len(assignment.gpus) != count:
        return "number of cards"
    for gpu in cards:
        share = 1000 if request.gpus else request.gpu_milli
        if request.gpu_memory_bytes:
            share = -(-request.gpu_memory_bytes * 1000 // gpu.memory_bytes) if gpu.memory_bytes else 1000
        if assignment.gpu_milli != share or share > 1000:
            return "share"
    return None


def topology_error(
    rule: Topology, assignments: Sequence[Assignment], by_id: dict[NodeId, Node]
) -> str | None:
    domains = [
        a.node if rule.level == NODE_LEVEL else by_id[a.node].labels.get(rule.level) for a in assignments
    ]
    if None in domains:
        return "a node in no domain"
    slices = [domains[i : i + rule.slice] for i in range(0, len(domains), rule.slice)]
    if rule.rule is Closeness.SAME:
        return "not the same domain" if len(set(domains)) > 1 else None
    if any(len(set(slice)) > 1 for slice in slices):
        return "a slice is split"
    if rule.rule is Closeness.SPREAD and len({slice[0] for slice in slices}) < len(slices):
        return "two slices in one domain"
    return None

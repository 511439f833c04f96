"""Tracks the resources that gangs hold on nodes, so that a placement can be checked again when it is
applied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hopyard.domain.cluster import Node
from hopyard.domain.gang import (
    NODE_LEVEL,
    Assignment,
    Closeness,
    Gang,
    NodeSelector,
    Placement,
    Role,
    Topology,
)
from hopyard.domain.ids import NodeId
from hopyard.domain.resources import WHOLE_GPU, Gpu


@dataclass(slots=True)
class _NodeUsage:
    """The amounts held on one node, independent of the node's reports."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_milli: dict[int, int] = field(default_factory=dict)
    extras: dict[str, int] = field(default_factory=dict)

    def add(self, role: Role, assignment: Assignment, sign: int) -> None:
        request = role.resources
        self.cpu_milli += sign * request.cpu_milli
        self.memory_bytes += sign * request.memory_bytes
        for index in assignment.gpus:
            self.gpu_milli[index] = self.gpu_milli.get(index, 0) + sign * assignment.gpu_milli
        for name, amount in request.extras:
            self.extras[name] = self.extras.get(name, 0) + sign * amount

    @property
    def is_empty(self) -> bool:
        return not (
            self.cpu_milli or self.memory_bytes or any(self.gpu_milli.values()) or any(self.extras.values())
        )


class NodeAllocations:
    """The allocations on all nodes. Mutable. Held amounts count even if their node is missing or has
    shrunk."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, Node] = {}
        self._gpus: dict[NodeId, dict[int, Gpu]] = {}
        self._usage: dict[NodeId, _NodeUsage] = {}

    def set_node(self, node: Node) -> None:
        self.nodes[node.id] = node
        self._gpus[node.id] = {gpu.index: gpu for gpu in node.gpus}

    def drop_node(self, node: NodeId) -> None:
        self.nodes.pop(node, None)
        self._gpus.pop(node, None)

    def is_in_use(self, node: NodeId) -> bool:
        """Returns whether a gang holds anything on the node."""
        return node in self._usage and not self._usage[node].is_empty

    def allocate(self, placement: Placement) -> str | None:
        """Allocates all replicas, or none and returns the reason. The gang has the placed size."""
        gang, assignments = placement.gang, placement.assignments
        ranks = [assignment.rank for assignment in assignments]
        if ranks != list(range(gang.size)):
            return f"the plan places ranks {ranks} of a gang of {gang.size}"
        allocated: list[tuple[Role, Assignment]] = []
        reason: str | None = None
        for (_, role), assignment in zip(gang.replica_roles(), assignments, strict=True):
            reason = self._find_shortfall(role, assignment)
            if reason is not None:
                break
            self._add(role, assignment, 1)
            allocated.append((role, assignment))
        reason = reason or self._topology_violation(gang, assignments)
        if reason is not None:
            for role, assignment in allocated:
                self._add(role, assignment, -1)
        return reason

    def count(self, placement: Placement, sign: int = 1) -> None:
        """Adds the allocations of a live gang; the sign -1 exactly undoes it. Checks nothing."""
        for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=False):
            self._add(role, assignment, sign)

    def _add(self, role: Role, assignment: Assignment, sign: int) -> None:
        usage = self._usage.get(assignment.node)
        if usage is None:
            usage = self._usage[assignment.node] = _NodeUsage()
        usage.add(role, assignment, sign)

    def _find_shortfall(self, role: Role, assignment: Assignment) -> str | None:
        node, request = self.nodes.get(assignment.node), role.resources
        if node is None:
            return f"there is no node {assignment.node}"
        if not node.schedulable:
            return f"node {node.id} is {node.unschedulable_state}"
        if not selector_matches(role.where, node):
            return f"node {node.id} does not match the request of role {role.name}"
        usage = self._usage.get(node.id, _NO_USAGE)
        cpu, memory = node.cpu_milli - usage.cpu_milli, node.memory_bytes - usage.memory_bytes
        if request.cpu_milli and request.cpu_milli > cpu:
            return (
                f"node {node.id} has {max(cpu, 0) / 1000:g} CPUs free, {request.cpu_milli / 1000:g} are "
                "requested"
            )
        if request.memory_bytes and request.memory_bytes > memory:
            return (
                f"node {node.id} has {max(memory, 0)} bytes of memory free, "
                f"{request.memory_bytes} are requested"
            )
        for name, amount in request.extras:
            free = node.extras.get(name, 0) - usage.extras.get(name, 0)
            if amount > free:
                return f"node {node.id} has {max(free, 0)} {name} free, {amount} are requested"
        return self._find_gpu_shortfall(role, assignment, usage)

    def _find_gpu_shortfall(self, role: Role, assignment: Assignment, usage: _NodeUsage) -> str | None:
        request, node_gpus = role.resources, self._gpus[assignment.node]
        count = request.gpus or int(request.is_gpu_share)
        if len(assignment.gpus) != count or len(set(assignment.gpus)) != count:
            return f"rank {assignment.rank} is assigned {len(assignment.gpus)} GPUs, {count} are requested"
        for index in assignment.gpus:
            gpu = node_gpus.get(index)
            if gpu is None or usage.gpu_milli.get(index, 0) + assignment.gpu_milli > WHOLE_GPU:
                return f"GPU {index} of node {assignment.node} is not free"
            if request.gpu_models and gpu.model.casefold() not in {
                model.casefold() for model in request.gpu_models
            }:
                return (
                    f"GPU {index} of node {assignment.node} is a {gpu.model}, "
                    f"{' or '.join(request.gpu_models)} is requested"
                )
            if assignment.gpu_milli != request.gpu_milli_on(gpu):
                return (
                    f"rank {assignment.rank} is assigned {assignment.gpu_milli} thousandths of a GPU, "
                    f"{request.gpu_milli_on(gpu)} are requested"
                )
        return None

    def _topology_violation(self, gang: Gang, assignments: Sequence[Assignment]) -> str | None:
        nodes = [self.nodes[assignment.node] for assignment in assignments]
        if len({node.engine for node in nodes}) > 1:
            return "the plan spreads one gang over several engines"
        rank = 0
        for role in gang.roles:
            if (
                role.topology is not None
                and (reason := _broken_rule(role.topology, nodes[rank : rank + role.replicas])) is not None
            ):
                return f"role {role.name}: {reason}"
            rank += role.replicas
        return None if gang.topology is None else _broken_rule(gang.topology, nodes)


_NO_USAGE = _NodeUsage()


def selector_matches(selector: NodeSelector, node: Node) -> bool:
    """Returns whether the node is in one of the pools, and has all labels."""
    if selector.pools and node.pool not in selector.pools:
        return False
    return all(node.labels.get(name) == value for name, value in selector.labels)


def _broken_rule(topology: Topology, nodes: Sequence[Node]) -> str | None:
    """Returns the rule that replicas on these nodes, one each in rank order, would break.

    The policy alone decides how near and how balanced is good enough: less may be free when the plan is
    applied.
    """
    slices: list[str] = []
    for part in _slices(nodes, topology.slice):
        domains = {_topology_domain(topology.level, node) for node in part}
        if None in domains:
            return f"a node has no label `{topology.level}`"
        if len(domains) > 1 and (topology.slice > 1 or topology.rule is Closeness.SAME):
            return f"a slice of {topology.slice} is split over several {topology.level}s"
        slices.extend(str(domain) for domain in domains)
    if topology.rule is Closeness.SAME and len(set(slices)) > 1:
        return f"its replicas are on more than one {topology.level}"
    if topology.rule is Closeness.SPREAD and len(set(slices)) < len(slices):
        return f"two of its replicas share one {topology.level}"
    return None


def _slices(nodes: Sequence[Node], size: int) -> Iterator[Sequence[Node]]:
    for start in range(0, len(nodes), max(size, 1)):
        yield nodes[start : start + max(size, 1)]


def _topology_domain(level: str, node: Node) -> str | None:
    return node.id if level == NODE_LEVEL else node.labels.get(level)

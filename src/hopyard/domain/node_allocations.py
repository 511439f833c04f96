"""What gangs hold on nodes, kept up to date as they come and go, so that a place can be checked once more
when it is given."""

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
    """What is held on one node, whatever the node says of itself."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_milli: dict[int, int] = field(default_factory=dict)
    extras: dict[str, int] = field(default_factory=dict)

    def add(self, role: Role, assignment: Assignment, sign: int) -> None:
        want = role.resources
        self.cpu_milli += sign * want.cpu_milli
        self.memory_bytes += sign * want.memory_bytes
        for index in assignment.gpus:
            self.gpu_milli[index] = self.gpu_milli.get(index, 0) + sign * assignment.gpu_milli
        for name, amount in want.extras:
            self.extras[name] = self.extras.get(name, 0) + sign * amount

    @property
    def is_empty(self) -> bool:
        return not (
            self.cpu_milli or self.memory_bytes or any(self.gpu_milli.values()) or any(self.extras.values())
        )


class NodeAllocations:
    """Mutable. What is held counts whether or not its node is there, and whatever the node shrank to."""

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
        """Whether any gang holds anything there."""
        return node in self._usage and not self._usage[node].is_empty

    def allocate(self, placement: Placement) -> str | None:
        """Give every replica its place, or none and tell the reason.
        The gang is of the size that is placed."""
        gang, assignments = placement.gang, placement.assignments
        if [one.rank for one in assignments] != list(range(gang.size)):
            return f"the plan places ranks {[one.rank for one in assignments]} of a gang of {gang.size}"
        taken: list[tuple[Role, Assignment]] = []
        reason: str | None = None
        for (_, role), assignment in zip(gang.replica_roles(), assignments, strict=True):
            reason = self._find_shortfall(role, assignment)
            if reason is not None:
                break
            self._add(role, assignment, 1)
            taken.append((role, assignment))
        reason = reason or self._topology_violation(gang, assignments)
        if reason is not None:
            for role, assignment in taken:
                self._add(role, assignment, -1)
        return reason

    def count(self, placement: Placement, sign: int = 1) -> None:
        """Count what a live gang holds; with the sign -1, exactly undo it. Nothing is checked."""
        for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=False):
            self._add(role, assignment, sign)

    def _add(self, role: Role, assignment: Assignment, sign: int) -> None:
        held = self._usage.get(assignment.node)
        if held is None:
            held = self._usage[assignment.node] = _NodeUsage()
        held.add(role, assignment, sign)

    def _find_shortfall(self, role: Role, assignment: Assignment) -> str | None:
        node, want = self.nodes.get(assignment.node), role.resources
        if node is None:
            return f"there is no node {assignment.node}"
        if not node.schedulable:
            return f"node {node.id} is {node.unschedulable_state}"
        if not selector_matches(role.where, node):
            return f"node {node.id} does not match the request of role {role.name}"
        held = self._usage.get(node.id, _NO_USAGE)
        cpu, memory = node.cpu_milli - held.cpu_milli, node.memory_bytes - held.memory_bytes
        if want.cpu_milli and want.cpu_milli > cpu:
            return (
                f"node {node.id} has {max(cpu, 0) / 1000:g} CPUs free, {want.cpu_milli / 1000:g} are "
                "requested"
            )
        if want.memory_bytes and want.memory_bytes > memory:
            return (
                f"node {node.id} has {max(memory, 0)} bytes of memory free, {want.memory_bytes} are requested"
            )
        for name, amount in want.extras:
            free = node.extras.get(name, 0) - held.extras.get(name, 0)
            if amount > free:
                return f"node {node.id} has {max(free, 0)} {name} free, {amount} are requested"
        return self._find_gpu_shortfall(role, assignment, held)

    def _find_gpu_shortfall(self, role: Role, assignment: Assignment, usage: _NodeUsage) -> str | None:
        want, known = role.resources, self._gpus[assignment.node]
        count = want.gpus or int(want.is_gpu_share)
        if len(assignment.gpus) != count or len(set(assignment.gpus)) != count:
            return f"rank {assignment.rank} is assigned {len(assignment.gpus)} GPUs, {count} are requested"
        for index in assignment.gpus:
            gpu = known.get(index)
            if gpu is None or usage.gpu_milli.get(index, 0) + assignment.gpu_milli > WHOLE_GPU:
                return f"GPU {index} of node {assignment.node} is not free"
            if want.gpu_models and gpu.model.casefold() not in {
                model.casefold() for model in want.gpu_models
            }:
                return (
                    f"GPU {index} of node {assignment.node} is a {gpu.model}, "
                    f"{' or '.join(want.gpu_models)} is requested"
                )
            if assignment.gpu_milli != want.gpu_milli_on(gpu):
                return (
                    f"rank {assignment.rank} is assigned {assignment.gpu_milli} thousandths of a GPU, "
                    f"{want.gpu_milli_on(gpu)} are requested"
                )
        return None

    def _topology_violation(self, gang: Gang, assignments: Sequence[Assignment]) -> str | None:
        nodes = [self.nodes[one.node] for one in assignments]
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
    """Whether the node is in one of the pools, and has all of the labels."""
    if selector.pools and node.pool not in selector.pools:
        return False
    return all(node.labels.get(name) == value for name, value in selector.labels)


def _broken_rule(topology: Topology, nodes: Sequence[Node]) -> str | None:
    """Which rule replicas on these nodes, one each in order of rank, would break. How near is near enough,
    and how balanced, is for the policy to say: whoever hurries later may find less."""
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
    for at in range(0, len(nodes), max(size, 1)):
        yield nodes[at : at + max(size, 1)]


def _topology_domain(level: str, node: Node) -> str | None:
    return node.id if level == NODE_LEVEL else node.labels.get(level)

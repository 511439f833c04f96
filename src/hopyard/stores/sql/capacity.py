"""What nodes have left, to check a plan once more when it is committed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hopyard.domain.cluster import Node
from hopyard.domain.gang import Assignment, Role


@dataclass(slots=True)
class Free:
    """What is left of one node. A node that is over-committed (it shrank) has less than nothing."""

    node: Node
    cpu_milli: int
    memory_bytes: int
    gpus: dict[int, str]  # index → model, of those nobody holds

    def copy(self) -> Free:
        return Free(self.node, self.cpu_milli, self.memory_bytes, dict(self.gpus))


def ranked_roles(roles: Iterable[Role]) -> list[Role]:
    """The role of each rank."""
    return [role for role in roles for _ in range(role.replicas)]


class Capacity:
    """Free amounts of all nodes; `take` gives a whole gang its place or says why not."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._free: dict[str, Free] = {
            node.id: Free(node, node.cpu_milli, node.memory_bytes, {gpu.index: gpu.model for gpu in node.gpus}) for node in nodes
        }

    def hold(self, roles: Sequence[Role], places: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        """Count what a live attempt uses, whatever its nodes say of themselves now."""
        for role, (name, gpus) in zip(roles, places, strict=False):
            free = self._free.get(name)
            if free is None:
                continue
            free.cpu_milli -= role.resources.cpu_milli
            free.memory_bytes -= role.resources.memory_bytes
            for index in gpus:
                free.gpus.pop(index, None)

    def take(self, roles: Sequence[Role], assignments: Sequence[Assignment]) -> str | None:
        """Give every replica its place, or none and tell the reason. `roles[i]` is the role of rank i."""
        if [a.rank for a in assignments] != list(range(len(roles))):
            return f"the plan places ranks {[a.rank for a in assignments]} of a gang of {len(roles)}"
        trial: dict[str, Free] = {}
        for role, assignment in zip(roles, assignments, strict=True):
            if assignment.node not in trial:
                if assignment.node not in self._free:
                    return f"there is no node {assignment.node}"
                trial[assignment.node] = self._free[assignment.node].copy()
            if (reason := _place(role, assignment, trial[assignment.node])) is not None:
                return reason
        if len({free.node.engine for free in trial.values()}) > 1:
            return "the plan spreads one gang over several engines"
        self._free.update(trial)
        return None

    def engine_of(self, assignment: Assignment) -> str:
        return self._free[assignment.node].node.engine


def _place(role: Role, assignment: Assignment, free: Free) -> str | None:
    want, name = role.resources, free.node.id
    if not free.node.ready:
        return f"node {name} is not ready"
    if want.cpu_milli and want.cpu_milli > free.cpu_milli:
        return f"node {name} has {max(free.cpu_milli, 0) / 1000:g} CPUs free, {want.cpu_milli / 1000:g} are asked for"
    if want.memory_bytes and want.memory_bytes > free.memory_bytes:
        return f"node {name} has {max(free.memory_bytes, 0)} bytes of memory free, {want.memory_bytes} are asked for"
    if len(assignment.gpus) != want.gpus:
        return f"rank {assignment.rank} is given {len(assignment.gpus)} GPUs, {want.gpus} are asked for"
    for index in assignment.gpus:
        model = free.gpus.pop(index, None)
        if model is None:
            return f"GPU {index} of node {name} is not free"
        if want.gpu_models and model.casefold() not in {name.casefold() for name in want.gpu_models}:
            return f"GPU {index} of node {name} is a {model}, {' or '.join(want.gpu_models)} is asked for"
    free.cpu_milli -= want.cpu_milli
    free.memory_bytes -= want.memory_bytes
    return None

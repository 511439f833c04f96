"""The unit of scheduling: replicas that start together or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from hopyard.domain.ids import DEFAULT_QUEUE, GangId, NodeId, QueueName
from hopyard.domain.resources import Resources


@dataclass(frozen=True, slots=True)
class Role:
    """`replicas` replicas of one kind, each with the same request."""

    name: str
    replicas: int
    resources: Resources


@dataclass(frozen=True, slots=True)
class Gang:
    """Ranks run through the roles in order: role 0 holds ranks 0 … replicas-1, and so on."""

    id: GangId
    roles: tuple[Role, ...]
    submitted_at: datetime
    queue: QueueName = DEFAULT_QUEUE
    priority: int = 0
    user: str = ""

    @property
    def size(self) -> int:
        return sum(role.replicas for role in self.roles)

    def requests(self) -> Iterator[tuple[int, Role]]:
        """Each replica's rank with its role, in rank order."""
        rank = 0
        for role in self.roles:
            for _ in range(role.replicas):
                yield rank, role
                rank += 1


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where one replica goes: a node, and which of its GPUs."""

    rank: int
    node: NodeId
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each replica of one gang goes; `assignments[i]` has rank i."""

    gang: Gang
    assignments: tuple[Assignment, ...]

"""The unit of scheduling: replicas that start together or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from hopyard.domain.ids import DEFAULT_QUEUE, GangId, NodeId, PoolName, QueueName
from hopyard.domain.resources import WHOLE_GPU, Resources

# the level of topology that is a node itself; every other level is a label of nodes ("rack", "zone")
NODE_LEVEL = "node"
DEFAULT_PRIORITY = 50  # of a run that asked for none, in a queue that says nothing else


class Closeness(StrEnum):
    SAME = "same"  # all in one domain of the level, or not at all
    NEAR = "near"  # in as few domains as what is free allows
    BALANCED = "balanced"  # in as few domains as possible, and as evenly over them as possible
    SPREAD = "spread"  # no two (slices) in one domain


@dataclass(frozen=True, slots=True)
class Topology:
    """How close replicas are to each other.

    level: NODE_LEVEL, or the label of nodes whose value names the domain; a node without the label is in no
    domain and is not used. slice: replicas come in slices of this many, and a slice is never split over two
    domains of the level; the last slice may be smaller.
    """

    level: str
    rule: Closeness
    slice: int = 1


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Which nodes may be used: in one of these pools (() any), with all of these labels (sorted by name)."""

    pools: tuple[PoolName, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


ANY_NODE = NodeSelector()


@dataclass(frozen=True, slots=True)
class Role:
    """`replicas` replicas of one kind, each with the same request.

    min_replicas: an elastic role may start with fewer, down to this many; 0 means exactly `replicas`.
    essential: the gang ends with the first of these replicas that ends badly, and when all of them have
    ended; one that is not essential may end as it likes.
    """

    name: str
    replicas: int
    resources: Resources
    min_replicas: int = 0
    where: NodeSelector = ANY_NODE
    topology: Topology | None = None
    essential: bool = True

    @property
    def required_replicas(self) -> int:
        return self.min_replicas or self.replicas


@dataclass(frozen=True, slots=True)
class Gang:
    """Ranks run through the roles in order: role 0 holds ranks 0 … replicas-1, and so on.

    topology: of all replicas together, beside what each role asks for itself.
    time_limit_s: it is ended after this long. script: what it runs; gangs of one user with equal scripts are
    expected to take alike. preemptible: may be asked to make room. input_digests: keys of what a node had
    better hold already (digests of datasets, keys of environments). served_s: seconds that earlier attempts
    ran. preemptions: how many of these were preempted. not_before: of one that was put back, when it is tried
    again; put_back says why.
    """

    id: GangId
    roles: tuple[Role, ...]
    submitted_at: datetime
    queue: QueueName = DEFAULT_QUEUE
    priority: int = 0
    user: str = ""
    topology: Topology | None = None
    time_limit_s: float | None = None
    script: str = ""
    preemptible: bool = True
    input_digests: tuple[str, ...] = ()
    served_s: float = 0.0
    preemptions: int = 0
    not_before: datetime | None = None
    requeue_reason: str = ""

    @property
    def has_no_end(self) -> bool:
        """Whether nothing is certain to end it: it may not be preempted, and has no time limit."""
        return not self.preemptible and self.time_limit_s is None

    @property
    def size(self) -> int:
        return sum(role.replicas for role in self.roles)

    @property
    def is_elastic(self) -> bool:
        return any(role.required_replicas < role.replicas for role in self.roles)

    def optional_ranks(self) -> frozenset[int]:
        """Those of replicas that are not essential."""
        if all(role.essential for role in self.roles):
            return frozenset()
        return frozenset(rank for rank, role in self.replica_roles() if not role.essential)

    def with_replica_counts(self, counts: Sequence[int]) -> Gang:
        """This gang with `counts[i]` replicas of role i, and no longer elastic."""
        if all(
            role.replicas == count and not role.min_replicas
            for role, count in zip(self.roles, counts, strict=True)
        ):
            return self
        roles = tuple(
            replace(role, replicas=count, min_replicas=0)
            for role, count in zip(self.roles, counts, strict=True)
        )
        return replace(self, roles=roles)

    def replica_roles(self) -> Iterator[tuple[int, Role]]:
        """Each replica's rank with its role, in rank order."""
        rank = 0
        for role in self.roles:
            for _ in range(role.replicas):
                yield rank, role
                rank += 1


CHANGED_AFTER_PLANNING = "the run was changed after the plan was made"


def differs_from_plan(planned: Gang, gang: Gang) -> bool:
    """Whether what was planned is not this gang as it waits: another queue, priority, time limit, or other
    requests. How many replicas of an elastic role are planned is the plan's to say."""
    return (planned.queue, planned.priority, planned.time_limit_s) != (
        gang.queue,
        gang.priority,
        gang.time_limit_s,
    ) or [role.resources for role in planned.roles] != [role.resources for role in gang.roles]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where one replica goes: a node, which of its GPUs, and how many thousandths of each of them."""

    rank: int
    node: NodeId
    gpus: tuple[int, ...] = ()
    gpu_milli: int = WHOLE_GPU


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each replica of one gang goes; `assignments[i]` has rank i.

    gang: with as many replicas of each role as are placed (`Gang.with_replica_counts`), which for an elastic
    gang may be fewer than it asked for.
    """

    gang: Gang
    assignments: tuple[Assignment, ...]

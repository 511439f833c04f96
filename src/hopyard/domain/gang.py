"""The unit of scheduling: replicas that start together or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from hopyard.backports import StrEnum, dataclass, zip
from hopyard.domain.ids import DEFAULT_QUEUE, GangId, NodeId, PoolName, QueueName
from hopyard.domain.resources import WHOLE_GPU, Resources

# the level of topology that is the node itself; every other level is a label of nodes ("rack", "zone")
NODE_LEVEL = "node"
DEFAULT_PRIORITY = 50  # of a run that requests none, in a queue without a default


class Closeness(StrEnum):
    SAME = "same"  # all in one domain of the level, or not placed
    NEAR = "near"  # in as few domains as the free capacity allows
    BALANCED = "balanced"  # in as few domains as possible, and as evenly over them as possible
    SPREAD = "spread"  # at most one (slice) per domain


@dataclass(frozen=True, slots=True)
class Topology:
    """How close the replicas are placed to each other.

    level: NODE_LEVEL, or a label of nodes with the domain as value; nodes without the label are not used.
    slice: replicas form slices of this size, and a slice is never split over two domains of the level; the
    last slice may be smaller.
    """

    level: str
    rule: Closeness
    slice: int = 1


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """The allowed nodes: in one of these pools (() for any), with all of these labels (sorted by name)."""

    pools: tuple[PoolName, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


ANY_NODE = NodeSelector()


@dataclass(frozen=True, slots=True)
class Role:
    """`replicas` replicas of one kind, each with the same request.

    min_replicas: an elastic role may start with fewer, down to this number; 0 means exactly `replicas`.
    essential: the gang ends with the first of these replicas that ends badly, and when all of them have
    ended. Other replicas may end in any way. service: these replicas serve the others, and are ended after
    them; the gang ends when one of them ends badly before.
    """

    name: str
    replicas: int
    resources: Resources
    min_replicas: int = 0
    where: NodeSelector = ANY_NODE
    topology: Topology | None = None
    essential: bool = True
    service: bool = False

    @property
    def required_replicas(self) -> int:
        return self.min_replicas or self.replicas


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang of replicas. Ranks follow the order of the roles: role 0 holds ranks 0 … replicas-1, and so on.

    topology: of all replicas together, in addition to the topology of each role. time_limit_s: the gang is
    stopped after this time. script: the program; gangs of one user with equal scripts are expected to take
    equally long. preemptible: may be preempted. input_digests: digests of datasets and keys of environments
    that a node should hold already. served_s: seconds that earlier attempts ran. preemptions: the number of
    them that were preempted. not_before: of a requeued gang, the time of the next retry; requeue_reason: why
    it was requeued. follows: the gang of the run of which this one evaluates the checkpoints while they
    appear. This gang is preempted for it, and preempts no other.
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
    follows: GangId | None = None

    @property
    def has_no_end(self) -> bool:
        """Whether its end is uncertain: it cannot be preempted, and has no time limit."""
        return not self.preemptible and self.time_limit_s is None

    @property
    def size(self) -> int:
        return sum(role.replicas for role in self.roles)

    @property
    def is_elastic(self) -> bool:
        return any(role.required_replicas < role.replicas for role in self.roles)

    def optional_ranks(self) -> frozenset[int]:
        """Returns the ranks of replicas that the gang does not wait for: services, and those that are
        not essential."""
        if all(role.essential and not role.service for role in self.roles):
            return frozenset()
        return frozenset(rank for rank, role in self.replica_roles() if role.service or not role.essential)

    def service_ranks(self) -> frozenset[int]:
        """Returns the ranks of services, which end the gang by a failure."""
        if not any(role.service for role in self.roles):
            return frozenset()
        return frozenset(rank for rank, role in self.replica_roles() if role.service and role.essential)

    def with_replica_counts(self, counts: Sequence[int]) -> Gang:
        """Returns this gang with `counts[i]` replicas of role i; it is no longer elastic."""
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
        """Yields each rank with its role, in rank order."""
        rank = 0
        for role in self.roles:
            for _ in range(role.replicas):
                yield rank, role
                rank += 1


CHANGED_AFTER_PLANNING = "the run was changed after the plan was made"


def differs_from_plan(planned: Gang, gang: Gang) -> bool:
    """Returns whether the waiting gang differs from the planned one: in queue, priority, time limit, or
    requests. The plan decides the number of replicas of an elastic role."""
    return (planned.queue, planned.priority, planned.time_limit_s) != (
        gang.queue,
        gang.priority,
        gang.time_limit_s,
    ) or [role.resources for role in planned.roles] != [role.resources for role in gang.roles]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of one replica: a node, its GPUs, and the thousandths of each of them."""

    rank: int
    node: NodeId
    gpus: tuple[int, ...] = ()
    gpu_milli: int = WHOLE_GPU


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of each replica of one gang; `assignments[i]` has rank i.

    gang: with the placed number of replicas of each role (`Gang.with_replica_counts`), which for an elastic
    gang may be less than requested.
    """

    gang: Gang
    assignments: tuple[Assignment, ...]

"""Kueue's topology-aware performance case as data (kubernetes-sigs/kueue,
test/performance/scheduler/configs/tas; facts only).

One block of 10 racks of 64 nodes with 96 CPUs and 256 GiB each; 5 cohorts of 6 queues, each with a quota of
20 CPUs, 100 more to borrow; 500 gangs a queue in three classes. Work is 1,320 CPU-seconds per queue on a
quota of 20: nothing can end before 66 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hopyard.domain.cluster import Node
from hopyard.domain.gang import Closeness, Topology
from hopyard.domain.ids import NodeId, QueueName
from hopyard.domain.queue import CPU, Queue, QueueTree
from hopyard.domain.resources import Resources
from hopyard.domain.run import RoleSpec, RunSpec

RACKS, NODES_PER_RACK, CPUS, MEMORY_GIB = 10, 64, 96, 256
COHORTS, QUEUES_PER_COHORT, QUOTA_MILLI, BORROW_MILLI = 5, 6, 20_000, 100_000
RACK = "rack"


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of gangs. every_s: the interval of its arrivals in a queue.
    slice: the number of pods that stay in one rack when balanced."""

    name: str
    count: int
    every_s: float
    pods: int
    cpu_milli: int
    runs_s: float
    priority: int
    slice: int


KINDS = (
    Kind("small", 350, 0.1, 2, 500, 0.2, 50, 1),
    Kind("medium", 100, 0.5, 4, 1250, 0.5, 75, 2),
    Kind("large", 50, 1.2, 8, 2500, 1.0, 100, 4),
)


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    queue: QueueName
    kind: Kind
    topology: Topology


def nodes(engine: str) -> tuple[Node, ...]:
    return tuple(
        Node(
            NodeId(f"rack{rack}-node{at:02d}"),
            engine,
            CPUS * 1000,
            MEMORY_GIB * 2**30,
            labels={RACK: f"rack{rack}", "block": "block0"},
        )
        for rack in range(RACKS)
        for at in range(NODES_PER_RACK)
    )


def queues() -> QueueTree:
    """Returns the queues. A cohort is a parent queue whose guarantee is the sum of its children's."""
    found: dict[QueueName, Queue] = {}
    for cohort in range(COHORTS):
        parent = QueueName(f"cohort{cohort}")
        found[parent] = Queue(
            parent,
            guarantee={CPU: QUEUES_PER_COHORT * QUOTA_MILLI},
            maximum={CPU: QUEUES_PER_COHORT * QUOTA_MILLI},
        )
        for at in range(QUEUES_PER_COHORT):
            name = QueueName(f"cohort{cohort}-queue{at}")
            found[name] = Queue(name, parent, guarantee={CPU: QUOTA_MILLI}, borrow_limit={CPU: BORROW_MILLI})
    return QueueTree(found, default=QueueName("cohort0-queue0"))


def arrivals(share: float = 1.0) -> list[Arrival]:
    """Returns the arrivals in order of submission; `share` takes the first gangs of each queue."""
    return sorted(_arrivals(share), key=lambda a: (a.at_s, a.queue, a.kind.name))


def _arrivals(share: float) -> Iterator[Arrival]:
    for name, queue in queues().queues.items():
        if queue.parent is None:
            continue
        for kind in KINDS:
            for number in range(round(kind.count * share)):
                yield Arrival(number * kind.every_s, name, kind, _topology(kind, number))


def _topology(kind: Kind, number: int) -> Topology:
    """Returns the topology constraint, in thirds: one rack required, preferred, or balanced in slices."""
    return (
        Topology(RACK, Closeness.SAME),
        Topology(RACK, Closeness.NEAR),
        Topology(RACK, Closeness.BALANCED, kind.slice),
    )[number % 3]


def spec(arrival: Arrival) -> RunSpec:
    kind = arrival.kind
    role = RoleSpec(
        ("wait",), replicas=kind.pods, resources=Resources(kind.cpu_milli), topology=arrival.topology
    )
    return RunSpec(
        kind.name, (role,), queue=arrival.queue, priority=kind.priority, params={"runs_s": kind.runs_s}
    )


def bound_s(share: float = 1.0) -> float:
    """Seconds before which nothing can have ended: a cohort's work over its quota, or the last arrival and
    its run."""
    work = (
        sum(round(kind.count * share) * kind.pods * kind.cpu_milli * kind.runs_s for kind in KINDS)
        / QUOTA_MILLI
    )
    last = max((round(kind.count * share) - 1) * kind.every_s + kind.runs_s for kind in KINDS)
    return max(work, last)


def racks_used(assigned: list[str]) -> int:
    return len({node.partition("-")[0] for node in assigned})

"""Small workloads and clusters, and playing them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hopyard.domain.cluster import Node
from hopyard.domain.ids import NodeId, QueueName
from hopyard.domain.resources import Gpu, Resources
from hopyard.domain.run import RoleSpec, RunSpec
from hopyard.simulator.report import Report
from hopyard.simulator.settings import Cluster, Costs, Settings
from hopyard.simulator.simulate import simulate
from hopyard.simulator.workload import Submission, Workload, in_order

GIB = 2**30


def node(name: str = "n0", *, gpus: int = 8, cpus: int = 64, model: str = "A100") -> Node:
    return Node(
        NodeId(name), "simulated", cpus * 1000, 512 * GIB, tuple(Gpu(index, model) for index in range(gpus))
    )


def cluster(count: int = 1, **each: Any) -> Cluster:
    return Cluster(tuple(node(f"n{at}", **each) for at in range(count)))


def a_run(
    at_s: float,
    duration_s: float,
    gpus: int = 1,
    *,
    replicas: int = 1,
    user: str = "user",
    queue: str | None = None,
    **spec: Any,
) -> Submission:
    role = RoleSpec(
        ("train.py",),
        replicas=replicas,
        resources=Resources(1000, GIB, gpus),
        min_replicas=spec.pop("min_replicas", 0),
    )
    made = RunSpec("p", (role,), queue=None if queue is None else QueueName(queue), **spec)
    return Submission(made, at_s, duration_s, user)


def workload(runs: Iterable[Submission]) -> Workload:
    return in_order("test", runs)


def play(
    runs: Iterable[Submission],
    on: Cluster | None = None,
    policy: Any = "fifo",
    *,
    costs: Costs | None = None,
    **settings: Any,
) -> Report:
    return simulate(workload(runs), on or cluster(), policy, Settings(costs=costs or Costs(), **settings))

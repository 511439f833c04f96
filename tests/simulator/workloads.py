"""Small workloads and clusters, and their simulation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hopyard.domain.cluster import Node
from hopyard.domain.ids import NodeId, QueueName
from hopyard.domain.resources import Gpu, Resources
from hopyard.domain.run import RoleSpec, RunSpec
from hopyard.simulator.report import SimulationReport
from hopyard.simulator.settings import SimulatedCluster, SimulationSettings, TimeCosts
from hopyard.simulator.simulate import simulate
from hopyard.simulator.workload import Workload, WorkloadRun, sorted_workload

GIB = 2**30


def node(name: str = "n0", *, gpus: int = 8, cpus: int = 64, model: str = "A100") -> Node:
    return Node(
        NodeId(name), "simulated", cpus * 1000, 512 * GIB, tuple(Gpu(index, model) for index in range(gpus))
    )


def cluster(count: int = 1, **options: Any) -> SimulatedCluster:
    return SimulatedCluster(tuple(node(f"n{index}", **options) for index in range(count)))


def workload_run(
    at_s: float,
    duration_s: float,
    gpus: int = 1,
    *,
    replicas: int = 1,
    user: str = "user",
    queue: str | None = None,
    **spec: Any,
) -> WorkloadRun:
    role = RoleSpec(
        ("train.py",),
        replicas=replicas,
        resources=Resources(1000, GIB, gpus),
        min_replicas=spec.pop("min_replicas", 0),
    )
    run_spec = RunSpec("p", (role,), queue=None if queue is None else QueueName(queue), **spec)
    return WorkloadRun(run_spec, at_s, duration_s, user)


def workload(runs: Iterable[WorkloadRun]) -> Workload:
    return sorted_workload("test", runs)


def run_simulation(
    runs: Iterable[WorkloadRun],
    machines: SimulatedCluster | None = None,
    policy: Any = "fifo",
    *,
    costs: TimeCosts | None = None,
    **settings: Any,
) -> SimulationReport:
    return simulate(
        workload(runs),
        machines or cluster(),
        policy,
        SimulationSettings(costs=costs or TimeCosts(), **settings),
    )

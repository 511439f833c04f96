"""Converts the numbers of a trace to the request of a run."""

from __future__ import annotations

from hopyard.domain.ids import QueueName, slug
from hopyard.domain.resources import Resources
from hopyard.domain.run import MAX_REPLICAS, RoleSpec, RunSpec

CPU_PER_GPU = 1000  # thousandths of a core, for a trace without CPUs
MAX_GPUS = 16 * MAX_REPLICAS  # of one run


def split_gpus(gpus: int, max_per_replica: int) -> int:
    """Returns the fewest equal replicas into which `gpus` GPUs are split, so that each has at most
    `max_per_replica` on one node."""
    if gpus <= max_per_replica:
        return 1
    return next(
        replicas for replicas in range(-(-gpus // max(max_per_replica, 1)), gpus + 1) if gpus % replicas == 0
    )


def trace_run_spec(
    project: str,
    resources: Resources,
    *,
    replicas: int = 1,
    script: str = "",
    queue: str = "",
    priority: int | None = None,
    limit_s: float | None = None,
    preemptible: bool = True,
) -> RunSpec:
    """Returns a run of one role. script: runs of one user with equal scripts are expected to take equally
    long. Invalid names are made valid."""
    role = RoleSpec((slug(script, fallback="run"),), replicas=replicas, resources=resources)
    return RunSpec(
        slug(project, fallback="trace"),
        (role,),
        queue=QueueName(slug(queue)) if queue else None,
        priority=priority,
        time_limit_s=limit_s,
        preemptible=preemptible,
    )

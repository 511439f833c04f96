"""Clusters with runs that may be preempted, for tests of preemption."""

from __future__ import annotations

from hopyard.domain.cluster import Running
from hopyard.domain.gang import Assignment, Gang, Placement
from hopyard.domain.ids import AttemptId, NodeId
from hopyard.domain.queue import QueueTree
from tests.scheduler.cluster_model import T0, ClusterModel, gang, machine, seconds


def running_on(
    name: str,
    node: str,
    gpus: tuple[int, ...],
    *,
    ran_s: float = 100,
    saved_s: float | None = None,
    **options: object,
) -> Running:
    """A run on these GPUs, which started `ran_s` ago and has a checkpoint from `saved_s` ago."""
    new_gang = gang(name, len(gpus), cpus=0, **options)  # type: ignore[arg-type]
    placement = Placement(new_gang, (Assignment(0, NodeId(node), gpus),))
    saved = None if saved_s is None else T0 - seconds(saved_s)
    return Running(placement, T0 - seconds(ran_s), AttemptId(f"{name}.1"), T0 - seconds(ran_s), saved)


def make_cluster(
    queues: QueueTree, nodes: dict[str, int], *runs: Running, pending: tuple[Gang, ...] = ()
) -> ClusterModel:
    cluster = ClusterModel({NodeId(name): machine(name, gpus) for name, gpus in nodes.items()}, queues)
    cluster.running = {run.gang.id: run for run in runs}
    cluster.originals = {run.gang.id: run.gang for run in runs}
    cluster.attempts.update({run.gang.id: 1 for run in runs})
    cluster.submit(*pending)
    return cluster


def preempted_gangs(cluster: ClusterModel) -> set[str]:
    return {preemption.gang for preemption in cluster.run_cycle().preempt}

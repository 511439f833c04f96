"""The policies to compare with, in cases that a person would think of."""

from __future__ import annotations

from dataclasses import replace

from hopyard.domain.cluster import Plan, Running
from hopyard.domain.gang import Assignment, Gang, Placement
from hopyard.domain.hold_causes import QueueBacklog
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import AttemptId, GangId, NodeId
from hopyard.domain.queue import QueueTree
from hopyard.interfaces.policy import SchedulingPolicy
from hopyard.scheduler.policies.capacity_order import CapacityOrder
from hopyard.scheduler.policies.fifo import Fifo
from hopyard.scheduler.policies.greedy_fifo import GreedyFifo
from hopyard.scheduler.policies.least_attained_service import LeastAttained
from tests.scheduler.cluster_model import T0, ClusterModel, gang, machine, queue, seconds, tree

ONE = tree(queue("default"))


def make_cluster(
    nodes: dict[str, int], *pending: Gang, queues: QueueTree = ONE, cpus: int = 64
) -> ClusterModel:
    cluster = ClusterModel(
        {NodeId(name): machine(name, gpus, cpus=cpus) for name, gpus in nodes.items()}, queues
    )
    cluster.submit(*pending)
    return cluster


def start_run(
    cluster: ClusterModel, gang: Gang, node: str, gpus: tuple[int, ...], *, for_s: float = 0.0
) -> None:
    """Adds a run of the gang on these GPUs, which started `for_s` ago."""
    placement = Placement(gang, (Assignment(0, NodeId(node), gpus),))
    began = T0 - seconds(for_s)
    cluster.running[gang.id] = Running(placement, began, AttemptId(f"{gang.id}.1"), began)
    cluster.originals[gang.id] = gang


def placed_nodes(plan: Plan) -> dict[str, set[str]]:
    return {
        placement.gang.id: {assignment.node for assignment in placement.assignments}
        for placement in plan.place
    }


def hold_reasons(plan: Plan) -> dict[str, HoldReason]:
    return {hold.gang: hold.reason for hold in plan.hold}


# First come, first served


def test_fifo_orders_by_priority_then_submission_then_id() -> None:
    waiting = [gang("late", at=9), gang("b", at=1), gang("a", at=1), gang("urgent", at=20, priority=90)]
    plan = Fifo()(make_cluster({"n": 3}, *waiting).snapshot())
    assert set(placed_nodes(plan)) == {"urgent", "a", "b"}
    assert hold_reasons(plan) == {"late": HoldReason.NO_CAPACITY}


def test_fifo_does_not_backfill() -> None:
    cluster = make_cluster({"n": 4}, gang("big", 3), gang("small", 1, at=1), gang("smaller", 1, at=2))
    start_run(cluster, gang("r", 2), "n", (0, 1))
    plan = Fifo()(cluster.snapshot())
    assert not plan.place
    assert [(hold.gang, hold.reason, hold.position) for hold in plan.hold] == [
        ("big", HoldReason.NO_CAPACITY, 1),
        ("small", HoldReason.BEHIND, 2),
        ("smaller", HoldReason.BEHIND, 3),
    ]
    assert [hold.cause for hold in plan.hold[1:]] == [QueueBacklog(1), QueueBacklog(2)]


def test_fifo_uses_nodes_that_earlier_gangs_cannot_use() -> None:
    cluster = make_cluster({"cpus": 0, "gpus": 1}, gang("g", 1), gang("c", 0, at=1))
    start_run(cluster, gang("r", 1), "gpus", (0,))
    assert placed_nodes(Fifo()(cluster.snapshot())) == {"c": {"cpus"}}


def test_fifo_is_not_blocked_by_gangs_that_can_never_start() -> None:
    queues = tree(queue("root"), queue("shut", "root", maximum=0), queue("open", "root"))
    giant, shut = gang("giant", 16, queue="open", priority=90), gang("shut", 1, queue="shut", priority=90)
    plan = Fifo()(make_cluster({"n": 2}, giant, shut, gang("g", 1, queue="open"), queues=queues).snapshot())
    assert set(placed_nodes(plan)) == {"g"}
    assert [(hold.gang, hold.reason) for hold in plan.hold] == [
        ("shut", HoldReason.QUOTA),
        ("giant", HoldReason.NEVER_FITS),
    ]


def test_fifo_holds_gangs_without_ready_nodes() -> None:
    cluster = make_cluster({"n": 2}, gang("g", 1))
    cluster.nodes = {name: replace(node, ready=False) for name, node in cluster.nodes.items()}
    assert hold_reasons(Fifo()(cluster.snapshot())) == {"g": HoldReason.NO_NODES}


# With overtaking


def test_fitting_gang_overtakes_and_best_fit_picks_the_fullest_node() -> None:
    cluster = make_cluster({"a": 4, "b": 4}, gang("big", 8), gang("small", 1, at=1))
    start_run(cluster, gang("r", 3), "b", (0, 1, 2))
    plan = GreedyFifo("best-fit")(cluster.snapshot())
    assert placed_nodes(plan) == {"small": {"b"}}
    assert hold_reasons(plan) == {"big": HoldReason.NEVER_FITS}


def test_rejected_gang_class_is_retried_after_a_run_ends() -> None:
    cluster, policy = make_cluster({"n": 2}, gang("g", 2)), GreedyFifo("best-fit")
    start_run(cluster, gang("r", 1), "n", (0,))
    assert not cluster.run_cycle(policy).place
    cluster.finish(GangId("r"))
    assert set(placed_nodes(cluster.run_cycle(policy))) == {"g"}


def test_placement_rejected_by_the_store_is_planned_again() -> None:
    cluster, policy = make_cluster({"n": 2}, gang("one", 2), gang("two", 2, at=1)), GreedyFifo("best-fit")
    assert set(placed_nodes(policy(cluster.snapshot()))) == {"one"}
    del cluster.pending[GangId("one")]  # it was cancelled before the commit
    assert set(placed_nodes(policy(cluster.snapshot()))) == {"two"}


# Capacity order


def test_queue_with_the_lowest_guarantee_utilisation_is_next() -> None:
    queues = tree(queue("a", guarantee=4), queue("b", guarantee=2))
    cluster = make_cluster(
        {"n": 6},
        gang("a1", 1, queue="a", at=5),
        gang("b1", 1, queue="b"),
        gang("b2", 1, queue="b", at=1),
        queues=queues,
    )
    start_run(cluster, gang("ra", 1, queue="a"), "n", (0,))
    start_run(cluster, gang("rb", 1, queue="b"), "n", (1,))
    start_run(cluster, gang("rc", 3, queue="b"), "n", (2, 3, 4))
    assert set(placed_nodes(CapacityOrder()(cluster.snapshot()))) == {"a1"}


def test_blocked_head_blocks_only_its_queue() -> None:
    queues = tree(queue("a", guarantee=4), queue("b", guarantee=4))
    waiting = [gang("a1", 4, queue="a"), gang("a2", 1, queue="a", at=1), gang("b1", 1, queue="b", at=2)]
    cluster = make_cluster({"n": 4}, *waiting, queues=queues)
    start_run(cluster, gang("r", 2, queue="b"), "n", (0, 1))
    plan = CapacityOrder()(cluster.snapshot())
    assert set(placed_nodes(plan)) == {"b1"}
    assert hold_reasons(plan) == {"a1": HoldReason.NO_CAPACITY, "a2": HoldReason.BEHIND}


def test_weights_replace_missing_guarantees() -> None:
    queues = tree(queue("a"), replace(queue("b"), weight=3.0))
    waiting = [gang(f"{name}{i}", 1, queue=name, at=i) for name in "ab" for i in range(4)]
    plan = CapacityOrder()(make_cluster({"n": 4}, *waiting, queues=queues).snapshot())
    assert set(placed_nodes(plan)) == {"a0", "b0", "b1", "b2"}


def test_queue_without_guarantee_is_last() -> None:
    queues = tree(queue("a", guarantee=0), queue("b", guarantee=1))
    cluster = make_cluster({"n": 5}, gang("a1", 1, queue="a"), gang("b1", 1, queue="b", at=1), queues=queues)
    start_run(cluster, gang("ra", 1, queue="a"), "n", (0,))
    start_run(cluster, gang("rb", 3, queue="b"), "n", (1, 2, 3))
    assert set(placed_nodes(CapacityOrder()(cluster.snapshot()))) == {"b1"}


# Least attained service


def start_served_run(cluster: ClusterModel, *gpus: int, for_s: float, at: float = 0.0) -> None:
    """Adds a run on these GPUs of node n, which started `for_s` ago."""
    start_run(cluster, gang("r" + "".join(map(str, gpus)), len(gpus), at=at), "n", gpus, for_s=for_s)


def preempted_gangs(plan: Plan) -> dict[str, str]:
    return {preemption.gang: preemption.for_gang for preemption in plan.preempt}


def test_las_preempts_runs_above_the_gpu_seconds_threshold() -> None:
    cluster = make_cluster({"n": 3}, gang("g", 1))
    start_served_run(cluster, 0, 1, for_s=1700)  # 3400 GPU-seconds
    start_served_run(cluster, 2, for_s=3200)
    plan = LeastAttained()(cluster.snapshot())
    assert preempted_gangs(plan) == {"r01": "g"}
    assert hold_reasons(plan) == {"g": HoldReason.PREEMPTING}


def test_las_preempts_the_newest_runs_and_no_more_than_needed() -> None:
    cluster = make_cluster({"n": 3}, gang("g", 2, at=9))
    for at, card in enumerate((2, 0, 1)):
        start_served_run(cluster, card, for_s=5000, at=at)
    assert preempted_gangs(LeastAttained()(cluster.snapshot())) == {"r1": "g", "r0": "g"}


def test_las_does_not_preempt_again_and_reserves_the_freed_capacity() -> None:
    cluster, policy = make_cluster({"n": 2}, gang("g", 2, at=9)), LeastAttained()
    start_served_run(cluster, 0, for_s=5000)
    assert preempted_gangs(cluster.run_cycle(policy)) == {"r0": "g"}
    cluster.submit(gang("small", 1, at=10))
    cluster.now += seconds(1)
    again = cluster.run_cycle(policy)
    assert not again.preempt and not again.place
    cluster.evict(GangId("r0"))
    assert set(placed_nodes(cluster.run_cycle(policy))) == {"g"}


def test_las_schedules_a_cycle_when_the_next_run_passes_the_threshold() -> None:
    cluster = make_cluster({"n": 2}, gang("g", 1))
    start_served_run(cluster, 0, 1, for_s=1000)
    plan = LeastAttained(threshold=3000)(cluster.snapshot())
    assert not plan.preempt
    assert plan.next_cycle_at == T0 + seconds(500)
    cluster.now += seconds(500)
    assert preempted_gangs(LeastAttained(threshold=3000)(cluster.snapshot())) == {"r01": "g"}


def test_las_schedules_a_cycle_when_a_new_run_passes_the_threshold() -> None:
    plan = LeastAttained(threshold=3000)(make_cluster({"n": 1}, gang("a", 1), gang("b", 1, at=1)).snapshot())
    assert set(placed_nodes(plan)) == {"a"}
    assert plan.next_cycle_at == T0 + seconds(3000)


def test_las_does_not_preempt_non_preemptible_runs_or_in_vain() -> None:
    cluster = make_cluster({"n": 2}, gang("g", 2))
    start_run(cluster, gang("firm", 1, preemptible=False), "n", (0,), for_s=9000)
    start_served_run(cluster, 1, for_s=9000)
    assert not LeastAttained()(cluster.snapshot()).preempt


def test_las_starts_the_better_class_first_and_promotes_long_waiting_gangs() -> None:
    waits = replace(gang("old", 1), served_s=4000.0)
    cluster = make_cluster({"n": 1}, waits, gang("new", 1, at=100))
    assert set(placed_nodes(LeastAttained()(cluster.snapshot()))) == {"new"}
    cluster.now += seconds(4000 * 3)
    early: SchedulingPolicy = LeastAttained(promote=3.0)
    assert set(placed_nodes(early(cluster.snapshot()))) == {"new"}
    cluster.now += seconds(4000)
    assert set(placed_nodes(early(cluster.snapshot()))) == {"old"}

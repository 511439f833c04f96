"""The policies to compare with, in cases that a person would think of."""

from __future__ import annotations

from dataclasses import replace

from hopyard.domain.cluster import HoldReason, Plan, Running
from hopyard.domain.gang import Assignment, Gang, Placement
from hopyard.domain.ids import AttemptId, GangId, NodeId
from hopyard.domain.queue import QueueTree
from hopyard.interfaces.policy import SchedulingPolicy
from hopyard.scheduler.policies.capacity_order import CapacityOrder
from hopyard.scheduler.policies.fifo import Fifo
from hopyard.scheduler.policies.greedy_fifo import GreedyFifo
from hopyard.scheduler.policies.least_attained_service import LeastAttained
from tests.scheduler.worlds import T0, World, gang, machine, queue, seconds, tree

ONE = tree(queue("default"))


def world(nodes: dict[str, int], *pending: Gang, queues: QueueTree = ONE, cpus: int = 64) -> World:
    found = World({NodeId(name): machine(name, gpus, cpus=cpus) for name, gpus in nodes.items()}, queues)
    found.submit(*pending)
    return found


def runs(found: World, one: Gang, node: str, gpus: tuple[int, ...], *, for_s: float = 0.0) -> None:
    """The gang holds these GPUs, and began so long ago."""
    placement = Placement(one, (Assignment(0, NodeId(node), gpus),))
    began = T0 - seconds(for_s)
    found.running[one.id] = Running(placement, began, AttemptId(f"{one.id}.1"), began)
    found.originals[one.id] = one


def placed(plan: Plan) -> dict[str, set[str]]:
    return {one.gang.id: {assignment.node for assignment in one.assignments} for one in plan.place}


def held(plan: Plan) -> dict[str, HoldReason]:
    return {hold.gang: hold.reason for hold in plan.hold}


# First come, first served


def test_fifo_by_priority_then_submission_then_id() -> None:
    waiting = [gang("late", at=9), gang("b", at=1), gang("a", at=1), gang("urgent", at=20, priority=90)]
    plan = Fifo()(world({"n": 3}, *waiting).snapshot())
    assert set(placed(plan)) == {"urgent", "a", "b"}
    assert held(plan) == {"late": HoldReason.NO_CAPACITY}


def test_fifo_lets_nobody_overtake() -> None:
    found = world({"n": 4}, gang("big", 3), gang("small", 1, at=1), gang("smaller", 1, at=2))
    runs(found, gang("r", 2), "n", (0, 1))
    plan = Fifo()(found.snapshot())
    assert not plan.place
    assert [(hold.gang, hold.reason, hold.position) for hold in plan.hold] == [
        ("big", HoldReason.NO_CAPACITY, 1),
        ("small", HoldReason.BEHIND, 2),
        ("smaller", HoldReason.BEHIND, 3),
    ]
    assert "1 run ahead" in plan.hold[1].detail and "2 runs ahead" in plan.hold[2].detail


def test_fifo_uses_nodes_that_nobody_ahead_waits_for() -> None:
    found = world({"cpus": 0, "gpus": 1}, gang("g", 1), gang("c", 0, at=1))
    runs(found, gang("r", 1), "gpus", (0,))
    assert placed(Fifo()(found.snapshot())) == {"c": {"cpus"}}


def test_fifo_is_not_blocked_by_who_never_fits_or_may_not() -> None:
    queues = tree(queue("root"), queue("shut", "root", most=0), queue("open", "root"))
    giant, shut = gang("giant", 16, queue="open", priority=90), gang("shut", 1, queue="shut", priority=90)
    plan = Fifo()(world({"n": 2}, giant, shut, gang("g", 1, queue="open"), queues=queues).snapshot())
    assert set(placed(plan)) == {"g"}
    assert [(hold.gang, hold.reason) for hold in plan.hold] == [
        ("shut", HoldReason.QUOTA),
        ("giant", HoldReason.NEVER_FITS),
    ]


def test_fifo_where_no_node_is_ready() -> None:
    found = world({"n": 2}, gang("g", 1))
    found.nodes = {name: replace(node, ready=False) for name, node in found.nodes.items()}
    assert held(Fifo()(found.snapshot())) == {"g": HoldReason.NO_NODES}


# With overtaking


def test_who_fits_overtakes_who_does_not_and_goes_where_least_is_left() -> None:
    found = world({"a": 4, "b": 4}, gang("big", 8), gang("small", 1, at=1))
    runs(found, gang("r", 3), "b", (0, 1, 2))
    plan = GreedyFifo("best-fit")(found.snapshot())
    assert placed(plan) == {"small": {"b"}}
    assert held(plan) == {"big": HoldReason.NEVER_FITS}


def test_a_shape_that_was_refused_is_tried_again_when_something_ended() -> None:
    found, policy = world({"n": 2}, gang("g", 2)), GreedyFifo("best-fit")
    runs(found, gang("r", 1), "n", (0,))
    assert not found.turn(policy).place
    found.end(GangId("r"))
    assert set(placed(found.turn(policy))) == {"g"}


def test_a_place_that_the_store_refused_is_offered_again() -> None:
    found, policy = world({"n": 2}, gang("one", 2), gang("two", 2, at=1)), GreedyFifo("best-fit")
    assert set(placed(policy(found.snapshot()))) == {"one"}
    del found.pending[GangId("one")]  # it was cancelled meanwhile; nothing was committed
    assert set(placed(policy(found.snapshot()))) == {"two"}


# Capacity order


def test_the_queue_that_uses_the_smallest_part_of_its_guarantee_is_next() -> None:
    queues = tree(queue("a", sure=4), queue("b", sure=2))
    found = world(
        {"n": 6},
        gang("a1", 1, queue="a", at=5),
        gang("b1", 1, queue="b"),
        gang("b2", 1, queue="b", at=1),
        queues=queues,
    )
    runs(found, gang("ra", 1, queue="a"), "n", (0,))
    runs(found, gang("rb", 1, queue="b"), "n", (1,))
    runs(found, gang("rc", 3, queue="b"), "n", (2, 3, 4))
    assert set(placed(CapacityOrder()(found.snapshot()))) == {"a1"}


def test_a_blocked_head_blocks_its_own_queue_only() -> None:
    queues = tree(queue("a", sure=4), queue("b", sure=4))
    waiting = [gang("a1", 4, queue="a"), gang("a2", 1, queue="a", at=1), gang("b1", 1, queue="b", at=2)]
    found = world({"n": 4}, *waiting, queues=queues)
    runs(found, gang("r", 2, queue="b"), "n", (0, 1))
    plan = CapacityOrder()(found.snapshot())
    assert set(placed(plan)) == {"b1"}
    assert held(plan) == {"a1": HoldReason.NO_CAPACITY, "a2": HoldReason.BEHIND}


def test_without_guarantees_weights_say_what_a_queue_is_sure_of() -> None:
    queues = tree(queue("a"), replace(queue("b"), weight=3.0))
    waiting = [gang(f"{name}{i}", 1, queue=name, at=i) for name in "ab" for i in range(4)]
    plan = CapacityOrder()(world({"n": 4}, *waiting, queues=queues).snapshot())
    assert set(placed(plan)) == {"a0", "b0", "b1", "b2"}


def test_a_queue_that_is_sure_of_nothing_comes_last() -> None:
    queues = tree(queue("a", sure=0), queue("b", sure=1))
    found = world({"n": 5}, gang("a1", 1, queue="a"), gang("b1", 1, queue="b", at=1), queues=queues)
    runs(found, gang("ra", 1, queue="a"), "n", (0,))
    runs(found, gang("rb", 3, queue="b"), "n", (1, 2, 3))
    assert set(placed(CapacityOrder()(found.snapshot()))) == {"b1"}


# Least attained service


def served(found: World, *gpus: int, for_s: float, at: float = 0.0) -> None:
    """A run on these GPUs of node n."""
    runs(found, gang("r" + "".join(map(str, gpus)), len(gpus), at=at), "n", gpus, for_s=for_s)


def preempted(plan: Plan) -> dict[str, str]:
    return {one.gang: one.for_gang for one in plan.preempt}


def test_las_preempts_who_was_served_more_than_the_threshold_in_gpu_seconds() -> None:
    found = world({"n": 3}, gang("g", 1))
    served(found, 0, 1, for_s=1700)  # 3400 GPU-seconds
    served(found, 2, for_s=3200)
    plan = LeastAttained()(found.snapshot())
    assert preempted(plan) == {"r01": "g"}
    assert held(plan) == {"g": HoldReason.PREEMPTING}


def test_las_asks_those_that_came_last_and_no_more_than_needed() -> None:
    found = world({"n": 3}, gang("g", 2, at=9))
    for at, card in enumerate((2, 0, 1)):
        served(found, card, for_s=5000, at=at)
    assert preempted(LeastAttained()(found.snapshot())) == {"r1": "g", "r0": "g"}


def test_las_asks_nobody_again_while_they_leave_and_gives_their_place_to_no_other() -> None:
    found, policy = world({"n": 2}, gang("g", 2, at=9)), LeastAttained()
    served(found, 0, for_s=5000)
    assert preempted(found.turn(policy)) == {"r0": "g"}
    found.submit(gang("small", 1, at=10))
    found.now += seconds(1)
    again = found.turn(policy)
    assert not again.preempt and not again.place
    found.leave(GangId("r0"))
    assert set(placed(found.turn(policy))) == {"g"}


def test_las_looks_again_when_the_next_run_passes_the_threshold() -> None:
    found = world({"n": 2}, gang("g", 1))
    served(found, 0, 1, for_s=1000)
    plan = LeastAttained(threshold=3000)(found.snapshot())
    assert not plan.preempt
    assert plan.next_cycle_at == T0 + seconds(500)
    found.now += seconds(500)
    assert preempted(LeastAttained(threshold=3000)(found.snapshot())) == {"r01": "g"}


def test_las_looks_again_when_one_that_starts_now_passes_the_threshold() -> None:
    plan = LeastAttained(threshold=3000)(world({"n": 1}, gang("a", 1), gang("b", 1, at=1)).snapshot())
    assert set(placed(plan)) == {"a"}
    assert plan.next_cycle_at == T0 + seconds(3000)


def test_las_never_preempts_who_may_not_be_or_where_it_would_not_help() -> None:
    found = world({"n": 2}, gang("g", 2))
    runs(found, gang("firm", 1, preemptible=False), "n", (0,), for_s=9000)
    served(found, 1, for_s=9000)
    assert not LeastAttained()(found.snapshot()).preempt


def test_las_serves_the_better_class_first_and_promotes_who_waited_long() -> None:
    waits = replace(gang("old", 1), served_s=4000.0)
    found = world({"n": 1}, waits, gang("new", 1, at=100))
    assert set(placed(LeastAttained()(found.snapshot()))) == {"new"}
    found.now += seconds(4000 * 3)
    early: SchedulingPolicy = LeastAttained(promote=3.0)
    assert set(placed(early(found.snapshot()))) == {"new"}
    found.now += seconds(4000)
    assert set(placed(early(found.snapshot()))) == {"old"}

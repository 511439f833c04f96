"""Cases a person would think of, with the sentences that people read."""

from __future__ import annotations

from hopyard.domain.cluster import HoldReason, Plan
from hopyard.domain.gang import Assignment, Gang, Placement, Role
from hopyard.domain.ids import GangId, NodeId
from hopyard.domain.resources import UNNAMED_GPU, Gpu, Resources
from hopyard.scheduler.fifo import priority_fifo
from hopyard.scheduler.fit import never_fits

from .shapes import T0, cluster, gang, node


def placed(plan: Plan) -> list[str]:
    return [p.gang.id for p in plan.place]


def busy(name: str, on: str, *, cpus: float = 0, gpus: tuple[int, ...] = ()) -> Placement:
    return Placement(gang(name, cpus=cpus, gpus=len(gpus)), (Assignment(0, NodeId(on), gpus),))


def test_an_empty_queue_starts_at_once() -> None:
    plan = priority_fifo(cluster(node("a", gpus=2), pending=(gang("g", gpus=1),)))
    assert plan.place[0].assignments == (Assignment(0, NodeId("a"), (0,)),)
    assert plan.hold == ()


def test_priority_then_first_come_then_id() -> None:
    waiting = (gang("late", at=9), gang("b", at=1), gang("a", at=1), gang("urgent", at=20, priority=90))
    assert placed(priority_fifo(cluster(node("n", cpus=3), pending=waiting))) == ["urgent", "a", "b"]


def test_a_blocked_gang_holds_back_those_behind_it_with_a_sentence() -> None:
    snapshot = cluster(
        node("node-a", gpus=4),
        running=(busy("r", "node-a", cpus=1, gpus=(0, 2, 3)),),
        pending=(gang("big", gpus=2), gang("small", gpus=1, at=1), gang("cpu", at=2)),
    )
    first, second, third = priority_fifo(snapshot).hold
    assert (first.gang, first.reason, first.position) == ("big", HoldReason.NO_CAPACITY, 1)
    assert first.detail == "needs 2 GPUs; 1 of 4 is free on node-a"
    assert (second.reason, second.position) == (HoldReason.BEHIND, 2)
    assert second.detail == "1 run ahead of it; one that waits for the same nodes needs 2 GPUs; 1 of 4 is free on node-a"
    assert third.reason is HoldReason.BEHIND
    assert third.detail.startswith("2 runs ahead of it")


def test_those_behind_may_use_nodes_that_nobody_ahead_waits_for() -> None:
    snapshot = cluster(node("cpu"), node("gpu", gpus=1), running=(busy("r", "gpu", gpus=(0,)),), pending=(gang("g", gpus=1), gang("c", at=1)))
    plan = priority_fifo(snapshot)
    assert [(p.gang.id, p.assignments[0].node) for p in plan.place] == [("c", "cpu")]


def test_too_large_for_every_node_blocks_nobody() -> None:
    plan = priority_fifo(cluster(node("a", gpus=2), pending=(gang("giant", gpus=16, priority=99), gang("g", gpus=1), gang("h", gpus=2))))
    assert placed(plan) == ["g"]
    assert [(h.gang, h.reason, h.position) for h in plan.hold] == [("h", HoldReason.NO_CAPACITY, 1), ("giant", HoldReason.NEVER_FITS, 2)]


def test_best_fit_keeps_whole_nodes_free() -> None:
    snapshot = cluster(node("a", gpus=4), node("b", gpus=4), running=(busy("r", "b", gpus=(1,)),), pending=(gang("one", gpus=1), gang("four", gpus=4, at=1)))
    plan = priority_fifo(snapshot)
    assert [p.assignments[0] for p in plan.place] == [Assignment(0, NodeId("b"), (0,)), Assignment(0, NodeId("a"), (0, 1, 2, 3))]


def test_a_gang_without_gpus_leaves_gpu_nodes_alone() -> None:
    plan = priority_fifo(cluster(node("a", cpus=2, gpus=1), node("z", cpus=64), pending=(gang("c"),)))
    assert plan.place[0].assignments[0].node == "z"


def test_a_gang_over_several_nodes_touches_the_fewest() -> None:
    nodes = (node("a", gpus=2), node("b", gpus=4, cpus=8), node("c", gpus=2), node("d", gpus=1))
    (placement,) = priority_fifo(cluster(*nodes, pending=(gang("g", replicas=5, gpus=1),))).place
    assert [(a.node, a.gpus) for a in placement.assignments] == [("b", (0,)), ("b", (1,)), ("b", (2,)), ("b", (3,)), ("d", (0,))]


def test_roles_that_want_a_model_choose_first() -> None:
    mixed = node("a", cpus=8)
    mixed = type(mixed)(mixed.id, "local", 8000, 0, (Gpu(0, "A100"), Gpu(1, "T4")))
    roles = (Role("any", 1, Resources(gpus=1)), Role("picky", 1, Resources(gpus=1, gpu_models=("a100",))))
    (placement,) = priority_fifo(cluster(mixed, pending=(Gang(GangId("g"), roles, T0),))).place
    assert [a.gpus for a in placement.assignments] == [(1,), (0,)]


def test_no_node_is_ready() -> None:
    (hold,) = priority_fifo(cluster(node("a", ready=False), pending=(gang("g"),))).hold
    assert (hold.reason, hold.detail) == (HoldReason.NO_NODES, "the only node, a, is not ready")
    (hold,) = priority_fifo(cluster(pending=(gang("g"),))).hold
    assert (hold.reason, hold.detail) == (HoldReason.NO_NODES, "no node has joined yet")


def test_the_only_fitting_node_is_not_ready() -> None:
    snapshot = cluster(node("a"), node("b", gpus=1, ready=False), pending=(gang("g", gpus=1), gang("c", at=1)))
    plan = priority_fifo(snapshot)
    assert placed(plan) == ["c"]
    assert plan.hold[0].reason is HoldReason.NO_CAPACITY
    assert plan.hold[0].detail == "needs 1 GPU, 1 CPU; the nodes that have that are not ready"


def test_a_gang_short_of_room_says_how_many_replicas_fit() -> None:
    snapshot = cluster(node("a", gpus=2), node("b", gpus=2), running=(busy("r", "b", gpus=(0,)),), pending=(gang("g", replicas=4, gpus=1),))
    assert priority_fifo(snapshot).hold[0].detail == "needs 4 replicas with 1 GPU, 1 CPU each at once; there is room for 3 now"


def test_a_node_that_shrank_under_its_runs_takes_nothing_more() -> None:
    plan = priority_fifo(cluster(node("a", cpus=1), running=(busy("r", "a", cpus=4),), pending=(gang("g", cpus=1),)))
    assert plan.hold[0].detail == "needs 1 CPU; 0 of 1 CPU are free on a"


def test_never_fits_says_what_is_missing_and_the_nearest_node() -> None:
    machines = (node("small"), node("big", cpus=16, gpus=4, memory_gib=64))
    assert never_fits(gang("g", gpus=4), machines) is None
    assert never_fits(gang("g"), ()) is None
    assert never_fits(gang("g", gpus=8), machines) == "needs 8 GPUs on one node; no node has that; the nearest, big, has 4 GPUs"
    unnamed = [node("plain", gpus=2, model=UNNAMED_GPU)]
    assert never_fits(gang("g", gpus=1, model="H100"), unnamed) == "needs 1 H100 GPU on one node; the only node, plain, has 2 GPUs of no named model"
    assert never_fits(gang("g", gpus=1, model="H100"), machines) == "needs 1 H100 GPU on one node; no node has that; the nearest, big, has 4 A100 GPUs"
    assert never_fits(gang("g", memory_gib=100), machines[:1]) == "needs 100 GiB of memory on one node; the only node, small, has 16 GiB of memory"
    assert never_fits(gang("g", cpus=32, gpus=1), machines) == "needs 32 CPUs on one node; no node has that; the nearest, big, has 16 CPUs"
    assert never_fits(gang("g", cpus=2, gpus=1), machines[:1]) == "needs 1 GPU on one node; the only node, small, has no GPU"
    assert (
        never_fits(gang("g", replicas=6, gpus=1), machines)
        == "needs 6 replicas with 1 GPU, 1 CPU each at once; all 2 nodes together can hold 4"
    )
    assert never_fits(gang("g", replicas=8, cpus=1), machines[:1]) == "needs 8 replicas with 1 CPU each at once; small can hold 4"

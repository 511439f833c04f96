"""Places that a person would choose, and the sentences where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopyard.domain.cluster import Node
from hopyard.domain.gang import (
    ANY_NODE,
    NODE_LEVEL,
    Assignment,
    Closeness,
    Gang,
    NodeSelector,
    Placement,
    Role,
    Topology,
)
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, NodeId, PoolName
from hopyard.domain.resources import UNKNOWN_GPU_MODEL, Gpu, Resources
from hopyard.scheduler.explain.hold_messages import hold_message
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.never_fits import never_fits
from hopyard.scheduler.placement.workload_mix import WorkloadMix
from tests.scheduler.cluster_model import GIB, T0


def node(
    name: str,
    gpus: int = 0,
    *,
    cpus: float = 4,
    memory_gib: float = 16,
    model: str = "A100",
    pool: str = "default",
    ready: bool = True,
    cordoned: bool = False,
    extras: dict[str, int] | None = None,
    holds: tuple[str, ...] = (),
    engine: str = "local",
    **labels: str,
) -> Node:
    cards = tuple(Gpu(i, model, 40 * GIB) for i in range(gpus))
    return Node(
        NodeId(name),
        engine,
        int(cpus * 1000),
        int(memory_gib * GIB),
        cards,
        PoolName(pool),
        ready,
        labels,
        cordoned,
        extras=extras or {},
        holds=frozenset(holds),
    )


def role(
    replicas: int = 1,
    gpus: int = 0,
    *,
    cpus: float = 1,
    memory_gib: float = 0,
    models: tuple[str, ...] = (),
    milli: int = 0,
    gpu_memory_gib: int = 0,
    extras: tuple[tuple[str, int], ...] = (),
    min_replicas: int = 0,
    pools: tuple[str, ...] = (),
    name: str = "worker",
    topology: Topology | None = None,
    **labels: str,
) -> Role:
    resources = Resources(
        int(cpus * 1000), int(memory_gib * GIB), gpus, models, False, milli, gpu_memory_gib * GIB, extras
    )
    where = NodeSelector(tuple(map(PoolName, pools)), tuple(sorted(labels.items())))
    return Role(name, replicas, resources, min_replicas, where, topology)


def gang(
    *roles: Role, name: str = "g", topology: Topology | None = None, wants: tuple[str, ...] = ()
) -> Gang:
    return Gang(GangId(name), roles, T0, topology=topology, input_digests=wants)


def gpus_by_node(placement: Placement | None) -> list[tuple[str, tuple[int, ...]]]:
    assert placement is not None
    return [(assignment.node, assignment.gpus) for assignment in placement.assignments]


def nodes_of(capacity: Capacity, *roles: Role, **options: object) -> list[str]:
    return [name for name, _ in gpus_by_node(capacity.place(gang(*roles, **options)))]  # type: ignore[arg-type]


def allocation(where: str, *gpus: int, cpus: float = 0, milli: int = 1000) -> Placement:
    resources = Resources(
        int(cpus * 1000), 0, len(gpus) if milli == 1000 else 0, gpu_milli=0 if milli == 1000 else milli
    )
    return Placement(
        Gang(GangId("busy"), (Role("w", 1, resources),), T0), (Assignment(0, NodeId(where), gpus, milli),)
    )


def test_empty_nodes_and_empty_gpus_stay_free() -> None:
    capacity = Capacity.of([node("a", 4), node("b", 4)], [allocation("b", 1)])
    assert gpus_by_node(capacity.place(gang(role(gpus=1)))) == [("b", (0,))]
    shared = Capacity.of([node("a", 4)], [allocation("a", 2, milli=600)])
    placement = shared.place(gang(role(milli=400)))
    assert placement is not None
    assert placement.assignments == (Assignment(0, NodeId("a"), (2,), 400),)


def test_gang_without_gpus_avoids_gpu_nodes() -> None:
    assert nodes_of(Capacity.of([node("a", 1, cpus=64), node("z", cpus=64)]), role()) == ["z"]


def test_scarce_gpu_model_is_kept_for_gangs_that_require_it() -> None:
    """Many gangs require T4, so a gang that accepts any GPU is placed elsewhere."""
    capacity = Capacity.of([node("a", 2, model="T4"), node("b", 2, model="A100")])
    capacity.update_weights(
        WorkloadMix.of(
            [(Resources(gpus=1, gpu_models=("T4",)), ANY_NODE, 5), (Resources(gpus=1), ANY_NODE, 5)]
        )
    )
    assert nodes_of(capacity, role(gpus=1)) == ["b"]


@pytest.mark.parametrize("ready", [True, False])
def test_gpus_of_unschedulable_nodes_do_not_relieve_scarcity(ready: bool) -> None:
    """Two T4 stay free for gangs that require them, however many are on lost or cordoned nodes."""
    closed = [node(f"z{at}", 8, model="T4", ready=ready, cordoned=ready) for at in range(10)]
    capacity = Capacity.of([node("a", 8), node("t", 2, model="T4"), *closed])
    mix = WorkloadMix.of(
        (role(gpus=1, models=(model,)).resources, ANY_NODE, count)
        for model, count in (("A100", 2), ("T4", 1))
    )
    capacity.update_weights(mix)
    assert nodes_of(capacity, role(gpus=1)) == ["a"]
    for closed_node in closed:
        capacity.set_node(replace(closed_node, ready=True, cordoned=False))
    capacity.update_weights(mix)
    assert nodes_of(capacity, role(gpus=1)) == ["t"]


def test_demand_for_unschedulable_nodes_has_no_weight() -> None:
    """Without demand for the free GPUs all count alike: a gang without GPUs goes where the fewest GPUs lose
    their CPUs."""
    closed = node("z", 4, model="T4", cpus=64, cordoned=True)
    mix = WorkloadMix.of([(role(gpus=1, models=("T4",)).resources, ANY_NODE, 1)])
    open_nodes = [node("a", 8, cpus=64), node("b", 2, cpus=64)]
    result = []
    for nodes in (open_nodes, [*open_nodes, closed], [*open_nodes, replace(closed, cordoned=False)]):
        capacity = Capacity.of(nodes)
        capacity.update_weights(mix)
        result.append(nodes_of(capacity, role(cpus=16)))
    assert result[0] == result[1] == ["b"]
    turned = Capacity.of([*open_nodes, closed])
    turned.update_weights(mix)
    assert nodes_of(turned, role(cpus=16)) == ["b"]
    turned.set_node(replace(closed, cordoned=False))
    turned.update_weights(mix)
    assert nodes_of(turned, role(cpus=16)) == result[2]
    turned.set_node(closed)
    turned.update_weights(mix)
    assert nodes_of(turned, role(cpus=16)) == ["b"]


def test_last_free_gpu_of_a_model_is_kept_after_many_changes() -> None:
    """On empty nodes the A100 would cost more, since most gangs request it."""
    capacity = Capacity.of([node("a", 8), node("t", 8, model="T4")], [allocation("t", 0, 1, 2, 3, 4, 5, 6)])
    capacity.update_weights(
        WorkloadMix.of(
            (role(gpus=1, models=(model,)).resources, ANY_NODE, count)
            for model, count in (("A100", 2), ("T4", 1))
        )
    )
    assert nodes_of(capacity, role(gpus=1)) == ["a"]
    capacity.allocate_all([allocation("a", 0)])
    assert nodes_of(capacity, role(gpus=1)) == ["a"]


def test_gpu_share_by_memory_depends_on_the_gpu() -> None:
    placement = Capacity.of([node("a", 1)]).place(gang(role(gpu_memory_gib=10)))
    assert placement is not None
    assert placement.assignments[0].gpu_milli == 250


def test_gang_over_several_nodes_uses_the_fewest_nodes() -> None:
    capacity = Capacity.of([node("a", 2), node("b", 4, cpus=8), node("c", 2), node("d", 1)])
    assert gpus_by_node(capacity.place(gang(role(5, gpus=1)))) == [
        ("b", (0,)),
        ("b", (1,)),
        ("b", (2,)),
        ("b", (3,)),
        ("d", (0,)),
    ]


def test_gang_stays_in_one_rack_if_possible() -> None:
    capacity = Capacity.of(
        [node("a", 1, rack="1"), node("b", 2, rack="2"), node("c", 2, rack="2"), node("d", 1, rack="1")]
    )
    assert nodes_of(capacity, role(2, gpus=1)) in (["b", "b"], ["c", "c"])
    assert sorted(nodes_of(capacity, role(4, gpus=1))) == ["b", "b", "c", "c"]
    assert len(set(nodes_of(capacity, role(6, gpus=1)))) == 4


def test_gang_is_not_split_over_two_engines() -> None:
    capacity = Capacity.of([node("a", 1, engine="local"), node("b", 1, engine="ray")])
    assert capacity.place(gang(role(2, gpus=1))) is None
    assert hold_message(capacity.why_not(gang(role(2, gpus=1)))) == (
        "needs 2 replicas with 1 GPU, 1 CPU each at once; no single engine has room for all of them now"
    )


def test_roles_with_a_gpu_model_are_placed_first() -> None:
    mixed = Node(NodeId("a"), "local", 8000, 0, (Gpu(0, "A100"), Gpu(1, "T4")))
    placement = Capacity.of([mixed]).place(
        gang(role(gpus=1, name="any"), role(gpus=1, models=("a100",), name="picky"))
    )
    assert [gpus for _, gpus in gpus_by_node(placement)] == [(1,), (0,)]


def test_elastic_gang_is_as_large_as_fits() -> None:
    capacity = Capacity.of([node("a", 2), node("b", 1)])
    placement = capacity.place(gang(role(8, gpus=1, min_replicas=2)))
    assert placement is not None
    assert (placement.gang.size, placement.gang.is_elastic) == (3, False)
    assert capacity.place(gang(role(8, gpus=1, min_replicas=4))) is None


def test_gang_prefers_nodes_that_hold_its_inputs() -> None:
    capacity = Capacity.of([node("a"), node("b", holds=("mnist",)), node("c", holds=("mnist", "torch"))])
    assert nodes_of(capacity, role(), wants=("mnist", "torch")) == ["c"]
    assert [
        a.node for a in capacity.place(gang(role()), preferred_nodes=frozenset({NodeId("b")})).assignments
    ] == ["b"]  # type: ignore[union-attr]


def test_topology_of_the_gang_covers_all_roles() -> None:
    racks = [node(f"{rack}{i}", 2, rack=rack) for rack in "xy" for i in range(2)]
    together = gang(role(2, gpus=1, name="w"), role(1, name="s"), topology=Topology("rack", Closeness.SAME))
    assert {
        a.node[0]
        for a in Capacity.of(racks, [allocation("x0", 0, 1), allocation("x1", 0)]).place(together).assignments
    } == {"y"}  # type: ignore[union-attr]
    apart = gang(role(1, gpus=1, name="w"), role(1, name="s"), topology=Topology("rack", Closeness.SPREAD))
    assert {a.node[0] for a in Capacity.of(racks).place(apart).assignments} == {"x", "y"}  # type: ignore[union-attr]
    pairs = gang(
        role(3, gpus=2, name="w"), role(1, name="s"), topology=Topology("rack", Closeness.BALANCED, 2)
    )
    assert [a.node[0] for a in Capacity.of(racks).place(pairs).assignments] == ["x", "x", "y", "y"]  # type: ignore[union-attr]


def test_failed_search_for_several_roles_allocates_nothing() -> None:
    """Where both cards of a were to serve the first role, the second had no room there: in the end, nothing
    was taken."""
    capacity = Capacity.of([node("a", 2), node("b", 1), node("c", 1)])
    assert nodes_of(capacity, role(gpus=2, cpus=2, name="ps"), role(gpus=1)) == ["a", "b"]
    for full in ("b", "c"):
        capacity.allocate(allocation(full, 0))
    assert nodes_of(capacity, role(gpus=1)) == ["a"]


def test_gang_of_64_full_nodes_gets_64_nodes() -> None:
    capacity = Capacity.of([node(f"n{i:03}", 8, cpus=64) for i in range(100)], [allocation("n007", 3)])
    placement = capacity.place(gang(role(64, gpus=8)))
    assert placement is not None
    assert len({a.node for a in placement.assignments}) == 64
    assert all(a.node != "n007" and len(a.gpus) == 8 for a in placement.assignments)


def test_allocation_on_a_removed_node_counts_when_it_returns() -> None:
    machine, held = node("a", 1), allocation("a", 0)
    capacity = Capacity.of([], [held])
    assert capacity.place(gang(role(gpus=1))) is None
    capacity.set_node(machine)
    assert capacity.place(gang(role(gpus=1))) is None
    capacity.drop_node(machine.id)
    capacity.release(held)
    capacity.set_node(machine)
    assert gpus_by_node(capacity.place(gang(role(gpus=1)))) == [("a", (0,))]


SMALL, BIG = node("small"), node("big", 4, cpus=16, memory_gib=64)


@pytest.mark.parametrize(
    ("requested", "machines", "why"),
    [
        (gang(role(gpus=4)), (SMALL, BIG), None),
        (gang(role()), (), None),
        (
            gang(role(gpus=8)),
            (SMALL, BIG),
            "needs 8 GPUs on one node; no node has that; the nearest, big, has 4 GPUs (4 too few)",
        ),
        (
            gang(role(gpus=1, models=("H100",))),
            (node("plain", 2, model=UNKNOWN_GPU_MODEL),),
            "needs 1 H100 GPU on one node; the only node, plain, has 2 GPUs of no known model (1 too few)",
        ),
        (
            gang(role(memory_gib=100)),
            (SMALL,),
            (
                "needs 100 GiB of memory on one node; the only node, small, has 16 GiB of memory (84 GiB "
                "too little)"
            ),
        ),
        (
            gang(role(cpus=32, gpus=1)),
            (SMALL, BIG),
            "needs 32 CPUs on one node; no node has that; the nearest, big, has 16 CPUs (16 CPUs too few)",
        ),
        (
            gang(role(cpus=2, gpus=1)),
            (SMALL,),
            "needs 1 GPU on one node; the only node, small, has no GPU (1 too few)",
        ),
        (
            gang(role(6, gpus=1)),
            (SMALL, BIG),
            "needs 6 replicas with 1 GPU, 1 CPU each at once; all 2 nodes together can hold 4",
        ),
        (
            gang(role(gpus=2, pools=("cpu",))),
            (node("c", pool="cpu"), node("t", 4, model="T4", pool="t4")),
            (
                "needs 2 GPUs on one node in pool `cpu`; no node has that; the nearest, c in pool `cpu`, "
                "has no GPU (2 too few); it would fit in pool `t4`"
            ),
        ),
        (
            gang(role(pools=("a100",))),
            (SMALL,),
            "needs a node in pool `a100`; there is none; it would fit in pool `default`",
        ),
        (
            gang(role(rack="7")),
            (SMALL,),
            "needs a node with rack=7; there is none; it would fit without the labels, on small",
        ),
        (
            gang(role(gpu_memory_gib=80)),
            (BIG,),
            (
                "needs 80 GiB of one GPU on one node; the only node, big, has 4 A100 GPUs with 40 GiB "
                "(each is too small)"
            ),
        ),
        (
            gang(role(extras=(("fpga", 3),))),
            (node("f", extras={"fpga": 2}),),
            "needs 3 fpga on one node; the only node, f, has 2 fpga (1 too few)",
        ),
        (
            gang(role(2, gpus=4, topology=Topology("rack", Closeness.SAME))),
            (node("a", 4, rack="1"), node("b", 4, rack="2")),
            "needs 2 replicas in one rack; no rack has room for more than 1",
        ),
        (
            gang(role(3, topology=Topology(NODE_LEVEL, Closeness.SPREAD))),
            (SMALL, BIG),
            "needs 3 different nodes with one replica each; 2 have room for one",
        ),
        (
            gang(role(cpus=3, name="chief"), role(2, cpus=2)),
            (node("a", cpus=4),),
            (
                "needs 3 replicas at once: 1 `chief` with 3 CPUs, 2 `worker` with 2 CPUs; a cannot hold "
                "them together: 3 CPUs too few"
            ),
        ),
        (
            gang(role(2, topology=Topology("zone", Closeness.NEAR))),
            (SMALL,),
            "needs 2 replicas by `zone`; no node has the label `zone`",
        ),
    ],
)
def test_never_fits_names_the_shortfall_and_a_node_that_fits(
    requested: Gang, machines: tuple[Node, ...], why: str | None
) -> None:
    cause = never_fits(requested, machines)
    assert (None if cause is None else hold_message(cause)) == why


@pytest.mark.parametrize(
    ("requested", "machines", "running", "reason", "why"),
    [
        (gang(role()), (), (), HoldReason.NO_NODES, "no node has joined yet"),
        (gang(role()), (node("a", ready=False),), (), HoldReason.NO_NODES, "the only node, a, is not ready"),
        (
            gang(role()),
            (node("a", cordoned=True), node("b", cordoned=True)),
            (),
            HoldReason.NO_NODES,
            "all 2 nodes are cordoned",
        ),
        (
            gang(role(gpus=2)),
            (node("a", 4),),
            (allocation("a", 0, 2, 3),),
            HoldReason.NO_CAPACITY,
            "needs 2 GPUs; 1 of 4 is free on a",
        ),
        (
            gang(role(cpus=2)),
            (node("a", cpus=3),),
            (allocation("a", cpus=2),),
            HoldReason.NO_CAPACITY,
            "needs 2 CPUs; 1 of 3 CPUs are free on a",
        ),
        (
            gang(role(milli=500)),
            (node("a", 1),),
            (allocation("a", 0, milli=700),),
            HoldReason.NO_CAPACITY,
            "needs 0.5 of one GPU; at most 0.3 of one of 1 is free on a",
        ),
        (
            gang(role(gpus=1)),
            (node("a"), node("b", 1, ready=False)),
            (),
            HoldReason.NO_CAPACITY,
            "needs 1 GPU, 1 CPU; the nodes with enough resources are not ready",
        ),
        (
            gang(role(gpus=1)),
            (node("a"), node("b", 1, cordoned=True)),
            (),
            HoldReason.NO_CAPACITY,
            "needs 1 GPU, 1 CPU; the nodes with enough resources are cordoned",
        ),
        (
            gang(role(cpus=1), role(2, cpus=3, name="worker")),
            (node("a", cpus=8),),
            (allocation("a", cpus=6),),
            HoldReason.NO_CAPACITY,
            "needs 3 CPUs for each `worker` replica; 2 of 8 CPUs are free on a",
        ),
        (
            gang(role(4, gpus=1)),
            (node("a", 2), node("b", 2)),
            (allocation("b", 0),),
            HoldReason.NO_CAPACITY,
            "needs 4 replicas with 1 GPU, 1 CPU each at once; there is room for 3 now",
        ),
        (
            gang(role(2, gpus=1, topology=Topology(NODE_LEVEL, Closeness.SAME))),
            (node("a", 2), node("b", 2)),
            (allocation("a", 0), allocation("b", 0)),
            HoldReason.TOPOLOGY,
            (
                "needs 2 replicas in one node; no node has room for more than 1, although there is room "
                "for it without this rule"
            ),
        ),
    ],
)
def test_why_not_names_the_reason(
    requested: Gang, machines: tuple[Node, ...], running: tuple[Placement, ...], reason: HoldReason, why: str
) -> None:
    capacity = Capacity.of(machines, running)
    assert capacity.place(requested) is None
    cause = capacity.why_not(requested)
    assert (cause.reason, hold_message(cause)) == (reason, why)

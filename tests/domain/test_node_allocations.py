"""What a store checks once more: it agrees with who plans, gives out nothing twice, and takes back
exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.amounts import placed_amounts
from hopyard.domain.cluster import Node
from hopyard.domain.gang import NODE_LEVEL, Assignment, Closeness, Placement, Topology
from hopyard.domain.ids import NodeId
from hopyard.domain.node_allocations import NodeAllocations
from hopyard.domain.node_validation import validate_node
from hopyard.domain.quota_check import QuotaCheck
from hopyard.domain.resources import Gpu
from hopyard.scheduler.cycle.planner import plan
from tests.scheduler.cluster_model import (
    ClusterModel,
    cluster_models,
    exceeded_limits,
    gang,
    machine,
    overcommitted,
)


def books(cluster: ClusterModel) -> tuple[NodeAllocations, QuotaCheck]:
    """With all that runs."""
    holdings, charges = NodeAllocations(), QuotaCheck(cluster.queues)
    for node in cluster.nodes.values():
        holdings.set_node(node)
    for running in cluster.running.values():
        holdings.count(running.placement)
        charges.charge(
            running.gang.queue, running.gang.user, placed_amounts(running.placement, cluster.nodes)
        )
    return holdings, charges


def refusal(holdings: NodeAllocations, charges: QuotaCheck, placement: Placement) -> str | None:
    """As a store asks; what is not refused is taken."""
    amounts = placed_amounts(placement, holdings.nodes)
    one = placement.gang
    reason = charges.find_violation(one.queue, one.user, amounts) or holdings.allocate(placement)
    if reason is None:
        charges.charge(one.queue, one.user, amounts)
    return reason


@settings(max_examples=150, deadline=None)
@given(cluster_models())
def test_what_a_turn_places_is_accepted(cluster: ClusterModel) -> None:
    holdings, charges = books(cluster)
    for placement in plan(cluster.snapshot()).place:
        assert refusal(holdings, charges, placement) is None


@settings(max_examples=150, deadline=None)
@given(cluster_models(), st.data())
def test_whatever_is_planned_the_state_stays_legal(cluster: ClusterModel, data: st.DataObject) -> None:
    """Plans of the past are tried again, at other places: what is accepted keeps all limits of nodes, queues
    and users."""
    holdings, charges = books(cluster)
    before = [running.placement for running in cluster.running.values()]
    already = set(exceeded_limits(cluster.queues, cluster.nodes, before)) | set(
        overcommitted(cluster.nodes, before)
    )
    taken: list[Placement] = []
    for number, placement in enumerate([*plan(cluster.snapshot()).place, *before]):
        elsewhere = data.draw(st.sampled_from(sorted(cluster.nodes)))
        for wanted in (
            placement,
            replace(
                placement, assignments=tuple(replace(one, node=elsewhere) for one in placement.assignments)
            ),
        ):
            again = replace(wanted, gang=replace(wanted.gang, priority=number))
            if refusal(holdings, charges, again) is None:
                taken.append(again)
    now = [*before, *taken]
    assert set(overcommitted(cluster.nodes, now)) <= already
    assert len(exceeded_limits(cluster.queues, cluster.nodes, now)) <= len(already)
    for placement in reversed(taken):
        holdings.count(placement, -1)
        charges.charge(
            placement.gang.queue, placement.gang.user, placed_amounts(placement, cluster.nodes), -1
        )
    fresh_holdings, fresh_charges = books(cluster)
    for placement in taken:  # exactly what was free before is free again
        assert refusal(holdings, charges, placement) == refusal(fresh_holdings, fresh_charges, placement)


@pytest.mark.parametrize(
    ("topology", "nodes", "fits"),
    [
        (Topology("rack", Closeness.NEAR, slice=2), "aacc", True),
        (Topology("rack", Closeness.NEAR, slice=2), "acac", False),  # a slice over two racks
        (Topology("rack", Closeness.SPREAD, slice=2), "aacc", True),
        (Topology("rack", Closeness.SPREAD, slice=2), "aabb", False),  # two slices in one rack
        (Topology("rack", Closeness.SAME, slice=2), "aabb", True),
        (Topology("rack", Closeness.BALANCED, slice=3), "aaac", True),  # the last slice may be smaller
        (Topology(NODE_LEVEL, Closeness.NEAR, slice=2), "aabb", True),
        (Topology(NODE_LEVEL, Closeness.NEAR, slice=2), "abba", False),
    ],
)
def test_slices_are_never_split(topology: Topology, nodes: str, fits: bool) -> None:
    holdings = NodeAllocations()
    for name, rack in (("a", "1"), ("b", "1"), ("c", "2")):
        holdings.set_node(machine(name, rack=rack))
    one = gang("g", 1, replicas=4, topology=topology)
    cards = dict.fromkeys("abc", 0)
    places = []
    for rank, name in enumerate(nodes):
        places.append((rank, name, cards[name]))
        cards[name] += 1
    assignments = tuple(Assignment(rank, NodeId(name), (card,)) for rank, name, card in places)
    assert (holdings.allocate(Placement(one, assignments)) is None) is fits


def test_a_sane_node_is_left_as_it_is() -> None:
    node = machine("n", 8)
    assert validate_node(node) == (node, ())
    assert validate_node(node)[0] is node


@given(
    st.integers(-(2**70), 2**70),
    st.integers(-(2**70), 2**70),
    st.lists(st.tuples(st.integers(-3, 5), st.integers(-(2**70), 2**70))),
)
def test_whatever_a_node_says_what_is_left_can_be_so(
    cpu: int, memory: int, cards: list[tuple[int, int]]
) -> None:
    said = Node(
        NodeId("n"),
        "e",
        cpu,
        memory,
        tuple(Gpu(index, "", size) for index, size in cards),
        extras={"fpga": cpu},
    )
    node, wrong = validate_node(said)
    assert node.cpu_milli in (0, cpu)
    assert node.memory_bytes in (0, memory)
    assert (
        min(
            node.cpu_milli, node.memory_bytes, *node.extras.values(), *(gpu.memory_bytes for gpu in node.gpus)
        )
        >= 0
    )
    assert len({gpu.index for gpu in node.gpus}) == len(node.gpus)
    assert all(gpu.index >= 0 and gpu.model for gpu in node.gpus)
    assert bool(wrong) == (node != said)
    assert validate_node(node) == (node, ())

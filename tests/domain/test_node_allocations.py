"""Checks of a store before a commit: they agree with the planner, allocate nothing twice, and release
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


def allocations_of(cluster: ClusterModel) -> tuple[NodeAllocations, QuotaCheck]:
    """Returns the allocations and the quota check of all running gangs."""
    allocations, quota_check = NodeAllocations(), QuotaCheck(cluster.queues)
    for node in cluster.nodes.values():
        allocations.set_node(node)
    for running in cluster.running.values():
        allocations.count(running.placement)
        quota_check.charge(
            running.gang.queue, running.gang.user, placed_amounts(running.placement, cluster.nodes)
        )
    return allocations, quota_check


def refusal(holdings: NodeAllocations, charges: QuotaCheck, placement: Placement) -> str | None:
    """Checks a placement like a store, and allocates it unless it is refused."""
    amounts = placed_amounts(placement, holdings.nodes)
    requested = placement.gang
    reason = charges.find_violation(requested.queue, requested.user, amounts) or holdings.allocate(placement)
    if reason is None:
        charges.charge(requested.queue, requested.user, amounts)
    return reason


@settings(max_examples=150, deadline=None)
@given(cluster_models())
def test_planned_placements_are_accepted(cluster: ClusterModel) -> None:
    allocations, quota_check = allocations_of(cluster)
    for placement in plan(cluster.snapshot()).place:
        assert refusal(allocations, quota_check, placement) is None


@settings(max_examples=150, deadline=None)
@given(cluster_models(), st.data())
def test_accepted_placements_keep_the_state_legal(cluster: ClusterModel, data: st.DataObject) -> None:
    """Old plans are applied again, on other nodes: accepted placements respect the limits of nodes, queues
    and users."""
    allocations, quota_check = allocations_of(cluster)
    before = [running.placement for running in cluster.running.values()]
    already = set(exceeded_limits(cluster.queues, cluster.nodes, before)) | set(
        overcommitted(cluster.nodes, before)
    )
    taken: list[Placement] = []
    for number, placement in enumerate([*plan(cluster.snapshot()).place, *before]):
        elsewhere = data.draw(st.sampled_from(sorted(cluster.nodes)))
        for candidate in (
            placement,
            replace(
                placement,
                assignments=tuple(
                    replace(assignment, node=elsewhere) for assignment in placement.assignments
                ),
            ),
        ):
            again = replace(candidate, gang=replace(candidate.gang, priority=number))
            if refusal(allocations, quota_check, again) is None:
                taken.append(again)
    now = [*before, *taken]
    assert set(overcommitted(cluster.nodes, now)) <= already
    assert len(exceeded_limits(cluster.queues, cluster.nodes, now)) <= len(already)
    for placement in reversed(taken):
        allocations.count(placement, -1)
        quota_check.charge(
            placement.gang.queue, placement.gang.user, placed_amounts(placement, cluster.nodes), -1
        )
    fresh_holdings, fresh_charges = allocations_of(cluster)
    for placement in taken:  # exactly the former capacity is free again
        assert refusal(allocations, quota_check, placement) == refusal(
            fresh_holdings, fresh_charges, placement
        )


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
def test_topology_slices_are_never_split(topology: Topology, nodes: str, fits: bool) -> None:
    allocations = NodeAllocations()
    for name, rack in (("a", "1"), ("b", "1"), ("c", "2")):
        allocations.set_node(machine(name, rack=rack))
    sliced = gang("g", 1, replicas=4, topology=topology)
    cards = dict.fromkeys("abc", 0)
    places = []
    for rank, name in enumerate(nodes):
        places.append((rank, name, cards[name]))
        cards[name] += 1
    assignments = tuple(Assignment(rank, NodeId(name), (card,)) for rank, name, card in places)
    assert (allocations.allocate(Placement(sliced, assignments)) is None) is fits


def test_valid_node_is_unchanged() -> None:
    node = machine("n", 8)
    assert validate_node(node) == (node, ())
    assert validate_node(node)[0] is node


@given(
    st.integers(-(2**70), 2**70),
    st.integers(-(2**70), 2**70),
    st.lists(st.tuples(st.integers(-3, 5), st.integers(-(2**70), 2**70))),
)
def test_validated_node_has_possible_values(cpu: int, memory: int, cards: list[tuple[int, int]]) -> None:
    text = Node(
        NodeId("n"),
        "e",
        cpu,
        memory,
        tuple(Gpu(index, "", size) for index, size in cards),
        extras={"fpga": cpu},
    )
    node, wrong = validate_node(text)
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
    assert bool(wrong) == (node != text)
    assert validate_node(node) == (node, ())

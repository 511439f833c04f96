"""Laws of every placement, for any cluster and gang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import Node
from hopyard.domain.gang import ANY_NODE, NODE_LEVEL, Closeness, Gang, NodeSelector, Placement, Role, Topology
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, NodeId, PoolName
from hopyard.domain.resources import Gpu, Resources
from hopyard.scheduler.explain.hold_messages import hold_message
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.never_fits import never_fits
from hopyard.scheduler.placement.optimistic_fit import OptimisticFit
from hopyard.scheduler.placement.score_rules import FRAGMENTATION_SCORES, SCORES
from hopyard.scheduler.placement.topology_check import obeys_topology
from hopyard.scheduler.placement.workload_mix import WorkloadMix
from tests.scheduler.cluster_model import GIB, T0
from tests.scheduler.placement.strategies import (
    AllocationCounter,
    gangs,
    nodes,
    placement_error,
    requests,
    reverse_gpus,
    topology_error,
)
from tests.scheduler.placement.test_topology_domains import divisions

many = settings(max_examples=100, deadline=None)
some = settings(max_examples=50, deadline=None)
scores = st.sampled_from(sorted([*SCORES, *FRAGMENTATION_SCORES]))
mixes = st.lists(st.tuples(requests(), st.just(ANY_NODE), st.integers(1, 9)), max_size=4).map(WorkloadMix.of)


def state(capacity: Capacity) -> list[list[int]]:
    free = capacity._free
    return [
        free.cpu.tolist(),
        free.memory.tolist(),
        *free.gpu.tolist(),
        *(free.extras[name].tolist() for name in sorted(free.extras)),
    ]


def filled_capacity(
    machines: list[Node], candidates: list[Gang], score: str = "fragmentation"
) -> tuple[Capacity, list[Placement]]:
    """Returns a capacity in which as many of these gangs as fit are placed, one after another."""
    capacity, placed = Capacity.of(machines), []
    for gang in candidates:
        placement = capacity.place(gang, score=score)
        if placement is not None:
            capacity.allocate(placement)
            placed.append(placement)
    return capacity, placed


@many
@given(nodes(), st.lists(gangs(), max_size=6), scores)
def test_gang_is_placed_completely_without_overcommitment(
    machines: list[Node], candidates: list[Gang], score: str
) -> None:
    capacity, counter = Capacity.of(machines), AllocationCounter(machines)
    for gang in candidates:
        before = state(capacity)
        placement = capacity.place(gang, score=score)
        assert state(capacity) == before, "the search allocates nothing"
        if placement is not None:
            assert placement_error(gang, placement, machines) is None
            capacity.allocate(placement)
            counter.add(placement)
    assert counter.overcommitted() == []


@many
@given(nodes(), st.lists(gangs(), max_size=5), gangs(), mixes, st.randoms(use_true_random=False), scores)
def test_placement_does_not_depend_on_input_order(
    machines: list[Node], before: list[Gang], requested: Gang, mix: WorkloadMix, random: Random, score: str
) -> None:
    capacity, placed = filled_capacity(machines, before)
    other_nodes, other_placed = [reverse_gpus(node) for node in machines], list(placed)
    random.shuffle(other_nodes)
    random.shuffle(other_placed)
    other = Capacity.of(other_nodes, other_placed)
    for variant in (capacity, other):
        variant.update_weights(mix)
    assert other.place(requested, score=score) == capacity.place(requested, score=score)


@many
@given(nodes(min_count=1), st.lists(gangs(), max_size=4), st.data(), mixes)
def test_updated_capacity_equals_rebuilt_capacity(
    machines: list[Node], candidates: list[Gang], data: st.DataObject, mix: WorkloadMix
) -> None:
    """Places are taken and given back, nodes change, vanish and return; every now and then all is
    compared."""
    capacity, live = Capacity.of(machines), list[Placement]()
    current_nodes = {node.id: node for node in machines}
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(
            st.sampled_from(["take", "take", "take", "back", "all", "copy", "node", "drop", "weigh"])
        )
        if step == "take" and candidates:
            placement = capacity.place(data.draw(st.sampled_from(candidates)), score=data.draw(scores))
            if placement is not None:
                capacity.allocate(placement)
                live.append(placement)
        elif step == "back" and live:
            capacity.release(live.pop(data.draw(st.integers(0, len(live) - 1))))
        elif step == "all":
            some = live[: data.draw(st.integers(0, len(live)))]
            without = [array.tolist() for array in capacity.free_totals_without(some)]
            capacity.release_all(some)
            assert state(capacity) == state(Capacity.of(current_nodes.values(), live[len(some) :]))
            shrunk = any((array < 0).any() for array in capacity.free_totals()[:2])
            assert shrunk or without == [array.tolist() for array in capacity.free_totals()]
            capacity.allocate_all(some)
        elif step == "copy":
            original, capacity = capacity, capacity.copy()
            original.close_nodes(current_nodes)  # changes of the original do not affect the copy
        elif step == "node":
            node = data.draw(st.sampled_from(machines))
            current_nodes[node.id] = replace(
                node,
                cpu_milli=data.draw(st.sampled_from([2000, node.cpu_milli])),
                ready=data.draw(st.booleans()),
            )
            capacity.set_node(current_nodes[node.id])
        elif step == "drop":
            removed = data.draw(st.sampled_from(machines)).id
            current_nodes.pop(removed, None)
            capacity.drop_node(removed)
        fresh = Capacity.of(current_nodes.values(), live)
        for variant in (capacity, fresh):
            variant.update_weights(mix)
        assert state(capacity) == state(fresh)
        score = data.draw(scores)
        assert [capacity.place(gang, score=score) for gang in candidates] == [
            fresh.place(gang, score=score) for gang in candidates
        ]


@st.composite
def multi_role_gangs(draw: st.DrawFn) -> Gang:
    """Gangs whose roles compete for nodes; most nodes suit several roles equally."""
    roles = []
    for number in range(draw(st.integers(2, 3))):
        gpus, cpus = draw(st.integers(0, 2)), draw(st.sampled_from([0, 1, 3]))
        milli = 0 if gpus else draw(st.sampled_from([0, 250, 400]))
        resources = Resources(1000 * cpus, draw(st.sampled_from([0, 5 * GIB])), gpus, gpu_milli=milli)
        roles.append(Role(f"r{number}", draw(st.integers(1, 3)), resources))
    return Gang(
        GangId("s"),
        tuple(roles),
        T0,
        topology=draw(st.sampled_from([None, None, Topology(NODE_LEVEL, Closeness.SPREAD, 2)])),
    )


@many
@given(
    nodes(min_count=2),
    st.lists(gangs(), max_size=3),
    st.lists(multi_role_gangs(), min_size=1, max_size=3),
    mixes,
    st.data(),
)
def test_placement_of_several_roles_does_not_depend_on_earlier_searches(
    machines: list[Node], before: list[Gang], candidates: list[Gang], mix: WorkloadMix, data: st.DataObject
) -> None:
    score = data.draw(scores)
    used, placed = filled_capacity(machines, before, score)
    fresh = Capacity.of(machines, placed)
    for variant in (used, fresh):
        variant.update_weights(mix)
    alone = [
        replace(gang, roles=(replace(role, replicas=1),), topology=None)
        for gang in candidates
        for role in gang.roles
    ]
    for gang in data.draw(st.permutations([*candidates, *alone])):
        assert used.place(gang, score=score) == fresh.copy().place(gang, score=score)


@some
@given(nodes(), st.lists(gangs(), max_size=5), st.lists(gangs(), max_size=3))
def test_allocate_release_and_intersect(
    machines: list[Node], before: list[Gang], extra_gangs: list[Gang]
) -> None:
    capacity, placed = filled_capacity(machines, before)
    untouched, copy = state(capacity), capacity.copy()
    for gang in extra_gangs:
        result = copy.place(gang)
        if result is not None:
            copy.allocate(result)
    assert state(capacity) == untouched, "the copy is independent"
    emptier = Capacity.of(machines, placed[1:])
    met, turned = copy.copy(), emptier.copy()
    met.intersect(emptier)
    turned.intersect(copy)
    least = [np.minimum(a, b).tolist() for a, b in zip(state(copy), state(emptier), strict=True)]
    assert state(met) == state(turned) == least
    for gang in before:
        if copy.place(gang) is None or emptier.place(gang) is None:
            assert len(gang.roles) > 1 or gang.topology or gang.roles[0].topology or met.place(gang) is None
    for placement in placed:
        capacity.release(placement)
    assert state(capacity) == state(Capacity.of(machines))


def node_capacities(role: Role, machines: list[Node], used: list[Placement]) -> dict[str, int]:
    """Returns for each node how many replicas of one role fit."""
    result: dict[str, int] = {}
    for node in machines:
        for count in range(role.replicas, -1, -1):
            counter = AllocationCounter(machines)
            for placement in used:
                counter.add(placement)
            if count == 0 or _fits_on_node(role, node, counter, count):
                result[node.id] = count
                break
    return result


def _fits_on_node(role: Role, node: Node, ledger: AllocationCounter, count: int) -> bool:
    request = role.resources
    if not node.schedulable or (role.where.pools and node.pool not in role.where.pools):
        return False
    if any(node.labels.get(name) != value for name, value in role.where.labels):
        return False
    for what, requested, total in (
        ("cpu", request.cpu_milli, node.cpu_milli),
        ("memory", request.memory_bytes, node.memory_bytes),
    ):
        if requested and ledger.used[node.id, what] + count * requested > total:
            return False
    for name, requested in request.extras:
        if requested and ledger.used[node.id, "extra", name] + count * requested > node.extras.get(name, 0):
            return False
    models = {model.lower() for model in request.gpu_models}
    left = [
        (gpu, 1000 - ledger.used[node.id, "gpu", str(gpu.index)])
        for gpu in node.gpus
        if not models or gpu.model.lower() in models
    ]
    if request.gpus:
        return sum(free >= 1000 for _, free in left) >= count * request.gpus
    return (
        not request.is_gpu_share
        or sum(max(free, 0) // request.gpu_milli_on(gpu) for gpu, free in left) >= count
    )


@many
@given(nodes(max_count=5), st.lists(gangs(), max_size=2), gangs())
def test_placement_of_one_role_is_found_if_one_exists(
    machines: list[Node], before: list[Gang], requested: Gang
) -> None:
    role = replace(requested.roles[0], topology=requested.topology or requested.roles[0].topology)
    gang = replace(requested, roles=(role,), topology=None)
    capacity, placed = filled_capacity(machines, before)
    room, best = node_capacities(role, machines, placed), 0
    for engine in {node.engine for node in machines}:
        nodes_of_engine = [node for node in machines if node.engine == engine]
        domains = [
            node.id
            if role.topology is None or role.topology.level == NODE_LEVEL
            else node.labels.get(role.topology.level)
            for node in nodes_of_engine
        ]
        held = {
            domain: sum(room[n.id] for n, d in zip(nodes_of_engine, domains, strict=True) if d == domain)
            for domain in domains
            if domain is not None
        }
        if sum(held.values()) > 0:
            best = max(
                [
                    best,
                    *(
                        count
                        for count in range(role.required_replicas, role.replicas + 1)
                        if _is_divisible(role, count, list(held.values()))
                    ),
                ]
            )
    placement = capacity.place(gang)
    assert (0 if placement is None else placement.gang.size) == best


def _is_divisible(role: Role, count: int, held: list[int]) -> bool:
    rule = role.topology
    if rule is None:
        return sum(held) >= count
    if rule.rule is Closeness.SAME:
        return max(held) >= count
    slices = [rule.slice] * (count // rule.slice) + ([count % rule.slice] if count % rule.slice else [])
    return any(
        rule.rule is not Closeness.SPREAD or len(set(division)) == len(division)
        for division in divisions(slices, held)
    )


@some
@given(
    nodes(), st.lists(gangs(), max_size=4), gangs(), st.sampled_from(["fragmentation", "fgd", "first-fit"])
)
def test_too_small_nodes_change_no_placement(
    machines: list[Node], before: list[Gang], requested: Gang, score: str
) -> None:
    """Too small for anything; the other rules measure nodes by the largest, and may choose otherwise."""
    requested = replace(
        requested,
        roles=tuple(
            replace(role, resources=replace(role.resources, cpu_milli=role.resources.cpu_milli or 500))
            for role in requested.roles
        ),
    )
    before = [
        replace(
            earlier,
            roles=tuple(
                replace(role, resources=replace(role.resources, cpu_milli=role.resources.cpu_milli or 500))
                for role in earlier.roles
            ),
        )
        for earlier in before
    ]
    _, placed = filled_capacity(machines, before)
    mix = WorkloadMix.of(
        [(role.resources, role.where, 1) for gang in (*before, requested) for role in gang.roles]
    )
    useless = [
        Node(
            NodeId(name),
            "local",
            400,
            64 * GIB,
            tuple(Gpu(i, "A100", 80 * GIB) for i in range(8)),
            PoolName("p"),
            labels={"rack": "r1"},
        )
        for name in ("a", "n1x", "z")
    ]
    fewer, larger = Capacity.of(machines, placed), Capacity.of([*useless, *machines], placed)
    for variant in (fewer, larger):
        variant.update_weights(mix)
    assert larger.place(requested, score=score) == fewer.place(requested, score=score)


@some
@given(
    nodes(),
    nodes(min_count=1),
    st.lists(gangs(), max_size=4),
    gangs(),
    st.sampled_from(["fragmentation", "fgd", "first-fit"]),
)
def test_unschedulable_nodes_change_no_placement(
    machines: list[Node], others: list[Node], before: list[Gang], requested: Gang, score: str
) -> None:
    """However large they are: their resources are no capacity and do not relieve scarcity."""
    closed = [
        replace(node, id=NodeId(f"{'anz'[at % 3]}-closed{at}"), ready=at % 2 == 1, cordoned=at % 2 == 1)
        for at, node in enumerate(others)
    ]
    _, placed = filled_capacity(machines, before)
    mix = WorkloadMix.of(
        [(role.resources, role.where, 1) for gang in (*before, requested) for role in gang.roles]
    )
    fewer, larger = Capacity.of(machines, placed), Capacity.of([*closed, *machines], placed)
    assert larger.place(requested, score=score) == fewer.place(requested, score=score)
    for variant in (fewer, larger):
        variant.update_weights(mix)
    assert larger.place(requested, score=score) == fewer.place(requested, score=score)


@many
@given(nodes(), st.lists(gangs(), max_size=4), gangs())
def test_unplaced_gang_has_a_reason_and_never_fits_means_an_empty_cluster_too(
    machines: list[Node], before: list[Gang], requested: Gang
) -> None:
    capacity, _ = filled_capacity(machines, before)
    never = never_fits(requested, machines)
    if capacity.place(requested) is None:
        cause = capacity.why_not(requested)
        reason = cause.reason
        assert hold_message(cause)
        assert (reason is HoldReason.NO_NODES) == (not any(node.schedulable for node in machines))
        assert capacity.why_not_reason(requested) is reason
    else:
        assert never is None
    empty = Capacity.of(replace(node, ready=True, cordoned=False) for node in machines)
    assert (never is None) == (not machines or empty.place(requested, score="first-fit") is not None)


@many
@given(nodes(), st.lists(gangs(), max_size=4), gangs(), st.data())
def test_optimistic_fit_never_rejects_a_fitting_gang(
    machines: list[Node], before: list[Gang], requested: Gang, data: st.DataObject
) -> None:
    capacity, placed = filled_capacity(machines, before)
    released = [placement for placement in placed if data.draw(st.booleans())]
    optimistic = OptimisticFit(capacity, released)
    for one in released:
        capacity.release(one)
    smallest = requested.with_replica_counts([role.required_replicas for role in requested.roles])
    if capacity.place(smallest, score="first-fit") is not None:
        assert optimistic.may_fit(smallest)


@some
@given(nodes(), gangs())
def test_topology_check_agrees_with_an_independent_check(machines: list[Node], requested: Gang) -> None:
    loose = replace(
        requested, topology=None, roles=tuple(replace(role, topology=None) for role in requested.roles)
    )
    placement = Capacity.of(machines).place(loose)
    if placement is not None:
        by_id = {node.id: node for node in machines}
        sized = replace(requested.with_replica_counts([role.replicas for role in placement.gang.roles]))
        start, why = (
            0,
            topology_error(requested.topology, placement.assignments, by_id) if requested.topology else None,
        )
        for role in sized.roles:
            if role.topology:
                why = why or topology_error(
                    role.topology, placement.assignments[start : start + role.replicas], by_id
                )
            start += role.replicas
        assert obeys_topology(sized, placement.assignments, machines) == (why is None)


@some
@given(nodes(), st.sets(st.sampled_from(["a100", "T4", "gpu"])))
def test_closed_gpu_models_are_not_used(machines: list[Node], closed: set[str]) -> None:
    gang = Gang(GangId("g"), (Role("w", 2, Resources(0, gpus=1)),), T0)
    placement = Capacity.of(machines).place(gang, closed_models=frozenset(closed))
    usable = [
        sum(gpu.model.lower() not in {m.lower() for m in closed} for gpu in n.gpus)
        for n in machines
        if n.schedulable
    ]
    if placement is None:
        by_engine = {
            e: sum(
                u
                for u, n in zip(usable, [m for m in machines if m.schedulable], strict=True)
                if n.engine == e
            )
            for e in ("local", "ray")
        }
        assert max(by_engine.values()) < 2
    else:
        by_id = {node.id: node for node in machines}
        for assignment in placement.assignments:
            models = {
                gpu.model.lower() for gpu in by_id[assignment.node].gpus if gpu.index in assignment.gpus
            }
            assert not models & {model.lower() for model in closed}


@st.composite
def colocated_gangs(draw: st.DrawFn) -> Gang:
    roles = [
        Role(
            f"r{number}",
            draw(st.integers(1, 2)),
            Resources(
                1000 * draw(st.integers(0, 3)), GIB * draw(st.integers(0, 2)), gpus=draw(st.integers(0, 2))
            ),
            where=NodeSelector((PoolName(draw(st.sampled_from(["p", "q"]))),))
            if draw(st.integers(0, 2)) == 0
            else ANY_NODE,
        )
        for number in range(draw(st.integers(2, 3)))
    ]
    return Gang(GangId("g"), tuple(roles), T0)


@many
@given(
    nodes(min_count=1, max_count=3),
    colocated_gangs(),
    st.sampled_from(["first-fit", "fragmentation", "best-fit"]),
)
def test_placement_of_several_roles_is_found_if_one_exists(
    machines: list[Node], requested: Gang, score: str
) -> None:
    """With every scoring rule: a promise found by one rule must be startable by another."""
    machines = [replace(node, engine="local", extras={}) for node in machines]
    roles = [role for _, role in requested.replica_roles()]
    ways = product([node for node in machines if node.schedulable], repeat=len(roles))
    possible = any(_fits_all(dict(_group_by_node(way, roles)), machines) for way in ways)
    placement = Capacity.of(machines).place(requested, score=score)
    assert (placement is not None) == possible
    if placement is not None:
        assert not placement_error(requested, placement, machines)


def _group_by_node(way: Sequence[Node], roles: Sequence[Role]) -> Iterable[tuple[NodeId, list[Role]]]:
    return (
        (node.id, [role for there, role in zip(way, roles, strict=True) if there is node]) for node in way
    )


def _fits_all(held: Mapping[NodeId, Sequence[Role]], machines: Sequence[Node]) -> bool:
    for node in machines:
        roles = held.get(node.id, ())
        requests_ = [role.resources for role in roles]
        if any(role.where.pools and node.pool not in role.where.pools for role in roles):
            return False
        if (
            sum(request.cpu_milli for request in requests_) > node.cpu_milli
            or sum(request.memory_bytes for request in requests_) > node.memory_bytes
        ):
            return False
        if sum(request.gpus for request in requests_) > len(node.gpus):
            return False
    return True

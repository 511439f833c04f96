"""What holds for every plan, whatever the cluster and the queue."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import HoldReason, Running, Snapshot
from hopyard.domain.gang import Gang
from hopyard.scheduler.capacity import FreeNode, fits_replica, free_capacity
from hopyard.scheduler.fifo import priority_fifo
from hopyard.scheduler.fit import never_fits, place

from .shapes import T0, cluster, gangs, nodes, snapshots

many = settings(max_examples=250, deadline=None)


def in_order(pending: tuple[Gang, ...]) -> list[Gang]:
    return sorted(pending, key=lambda g: (-g.priority, g.submitted_at, g.id))


@many
@given(snapshots())
def test_every_pending_gang_is_answered_exactly_once(snapshot: Snapshot) -> None:
    plan = priority_fifo(snapshot)
    answered = [p.gang.id for p in plan.place] + [h.gang for h in plan.hold]
    assert sorted(answered) == sorted(g.id for g in snapshot.pending)
    assert [h.position for h in plan.hold] == list(range(1, len(plan.hold) + 1))
    assert all(h.detail for h in plan.hold)
    assert plan.based_on == snapshot.version


@many
@given(snapshots())
def test_a_gang_is_placed_whole_on_ready_nodes(snapshot: Snapshot) -> None:
    for placement in priority_fifo(snapshot).place:
        assert [a.rank for a in placement.assignments] == list(range(placement.gang.size))
        for (_, role), assignment in zip(placement.gang.requests(), placement.assignments, strict=True):
            machine = snapshot.nodes[assignment.node]
            assert machine.ready
            chosen = [gpu for gpu in machine.gpus if gpu.index in assignment.gpus]
            assert len(chosen) == len(assignment.gpus) == role.resources.gpus
            wanted = {model.lower() for model in role.resources.gpu_models}
            assert not wanted or all(gpu.model.lower() in wanted for gpu in chosen)


@many
@given(snapshots())
def test_no_node_is_overcommitted_and_no_gpu_given_twice(snapshot: Snapshot) -> None:
    cpu: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    cards: Counter[tuple[str, int]] = Counter()
    for placement in (*(r.placement for r in snapshot.running), *priority_fifo(snapshot).place):
        for (_, role), assignment in zip(placement.gang.requests(), placement.assignments, strict=True):
            cpu[assignment.node] += role.resources.cpu_milli
            memory[assignment.node] += role.resources.memory_bytes
            cards.update((assignment.node, index) for index in assignment.gpus)
    for machine in snapshot.nodes.values():
        assert cpu[machine.id] <= machine.cpu_milli
        assert memory[machine.id] <= machine.memory_bytes
    assert all(count == 1 for count in cards.values())


@many
@given(snapshots(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(snapshot: Snapshot, random: Random) -> None:
    pending, running, machines = list(snapshot.pending), list(snapshot.running), list(snapshot.nodes.values())
    for items in (pending, running, machines):
        random.shuffle(items)
    machines = [replace(m, gpus=tuple(random.sample(m.gpus, len(m.gpus)))) for m in machines]
    other = Snapshot(snapshot.version, snapshot.now, {m.id: m for m in machines}, tuple(pending), tuple(running))
    assert priority_fifo(other) == priority_fifo(snapshot)


@many
@given(snapshots())
def test_nobody_is_overtaken_on_a_node_that_it_waits_for(snapshot: Snapshot) -> None:
    plan = priority_fifo(snapshot)
    order = {gang.id: i for i, gang in enumerate(in_order(snapshot.pending))}
    by_id = {gang.id: gang for gang in snapshot.pending}
    for hold in plan.hold:
        if hold.reason is HoldReason.NEVER_FITS:
            continue
        waiting = by_id[hold.gang]
        able = {
            machine.id
            for machine in snapshot.nodes.values()
            if any(fits_replica(role.resources, FreeNode.whole(machine)) for role in waiting.roles)
        }
        for placement in plan.place:
            if order[placement.gang.id] > order[waiting.id]:
                assert not able & {a.node for a in placement.assignments}


@many
@given(snapshots())
def test_the_first_that_can_ever_start_starts_now_if_it_fits(snapshot: Snapshot) -> None:
    plan = priority_fifo(snapshot)
    possible = [g for g in in_order(snapshot.pending) if never_fits(g, snapshot.nodes.values()) is None]
    if possible and place(possible[0], free_capacity(snapshot)) is not None:
        assert possible[0].id in {p.gang.id for p in plan.place}


@many
@given(snapshots())
def test_a_held_gang_has_the_reason_that_is_true(snapshot: Snapshot) -> None:
    by_id = {gang.id: gang for gang in snapshot.pending}
    plan = priority_fifo(snapshot)
    afterwards = replace(snapshot, running=(*snapshot.running, *(Running(p, T0) for p in plan.place)))
    seen_never = False
    for hold in plan.hold:
        never = never_fits(by_id[hold.gang], snapshot.nodes.values())
        assert (hold.reason is HoldReason.NEVER_FITS) == (never is not None)
        seen_never = seen_never or never is not None
        assert not seen_never or never is not None  # those without hope stand behind all others
        if hold.reason is HoldReason.NO_NODES:
            assert not any(n.ready for n in snapshot.nodes.values())
        if hold.reason is HoldReason.NO_CAPACITY:
            assert place(by_id[hold.gang], free_capacity(afterwards)) is None


@many
@given(nodes(), gangs(max_size=1))
def test_a_gang_of_one_role_never_fits_exactly_when_the_replicas_do_not(machines: list, found: list[Gang]) -> None:
    """Counted by hand: a gang of equal replicas fits when the nodes hold enough of them side by side."""
    for one in found:
        if len(one.roles) > 1 or not machines:
            continue
        room = 0
        for machine in machines:
            free, asked = FreeNode.whole(machine), one.roles[0].resources
            while room < one.size and fits_replica(asked, free):
                free.take(asked)
                room += 1
        assert (never_fits(one, machines) is None) == (room >= one.size)


@many
@given(nodes(), gangs(max_size=1))
def test_what_fits_one_node_goes_to_one_node(machines: list, found: list[Gang]) -> None:
    ready = [m for m in machines if m.ready]
    for one in found:
        alone = any(place(one, [FreeNode.whole(machine)]) is not None for machine in ready)
        for placement in priority_fifo(cluster(*ready, pending=(one,))).place:
            assert (len({a.node for a in placement.assignments}) == 1) == alone

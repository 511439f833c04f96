"""What holds for every turn, whatever the cluster, the queues and what was decided before."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import Breach, BreachCause, HoldReason, Node, Plan, Promise, Running, Snapshot
from hopyard.domain.duration_keys import history_keys
from hopyard.domain.effective_limits import queue_path
from hopyard.domain.gang import Placement
from hopyard.domain.ids import GangId, NodeId, ReservationId
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.scheduler.cycle import promises
from hopyard.scheduler.cycle.planner import plan
from hopyard.scheduler.duration_estimates import estimate_duration
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.never_fits import never_fits
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from hopyard.scheduler.timeline.backfill import BackfillTimeline
from hopyard.scheduler.timeline.reservation_windows import may_use
from hopyard.scheduler.timeline.run_end_estimates import RunEndEstimates
from tests.scheduler.worlds import (
    GIB,
    T0,
    World,
    beyond_limits,
    bookings,
    clusters,
    gang,
    gangs,
    machine,
    overcommitted,
    seconds,
    shuffled,
    trees,
    worlds,
)

many = settings(max_examples=50, deadline=None)


def placements(snapshot: Snapshot, wanted: Plan) -> list[Placement]:
    """All there is once the plan was applied."""
    return [*(running.placement for running in snapshot.running), *wanted.place]


@many
@given(worlds())
def test_every_gang_is_answered_once_and_stands_in_the_order_of_its_queue(world: World) -> None:
    snapshot = world.snapshot()
    wanted = plan(snapshot)
    assert sorted([p.gang.id for p in wanted.place] + [h.gang for h in wanted.hold]) == sorted(
        g.id for g in snapshot.pending
    )
    assert len(wanted.hold) == len(list(wanted.hold))
    for _, of_queue in groupby(wanted.hold, lambda hold: world.pending[hold.gang].queue):
        holds = list(of_queue)
        assert [hold.position for hold in holds] == list(range(1, len(holds) + 1))
        for first, second in pairwise(holds):
            never = [hold.reason is HoldReason.NEVER_FITS for hold in (first, second)]
            assert never != [True, False]
            assert (
                never[0] != never[1]
                or world.pending[first.gang].priority >= world.pending[second.gang].priority
            )
    for hold in wanted.hold:
        assert hold.detail
        assert (hold.reason is HoldReason.NEVER_FITS) == (
            never_fits(world.pending[hold.gang], snapshot.nodes.values()) is not None
        )


@many
@given(worlds())
def test_a_gang_starts_whole_and_the_state_stays_legal(world: World) -> None:
    snapshot = world.snapshot()
    before = beyond_limits(world.queues, world.nodes, [running.placement for running in snapshot.running])
    wanted = plan(snapshot)
    for placement in wanted.place:
        asked = world.pending[placement.gang.id]
        for role, given_role in zip(asked.roles, placement.gang.roles, strict=True):
            assert role.required_replicas <= given_role.replicas <= role.replicas
        assert [a.rank for a in placement.assignments] == list(range(placement.gang.size))
        for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=True):
            assert world.nodes[assignment.node].schedulable
            assert len(assignment.gpus) == (role.resources.gpus or int(role.resources.is_gpu_share))
    assert not overcommitted(world.nodes, placements(snapshot, wanted))
    assert {*beyond_limits(world.queues, world.nodes, placements(snapshot, wanted))} <= {*before}


@many
@given(worlds(), st.randoms(use_true_random=False))
def test_equal_snapshots_give_equal_plans_however_they_are_told(world: World, random: Random) -> None:
    snapshot = world.snapshot()
    wanted = plan(snapshot)
    assert plan(replace(snapshot)) == wanted
    assert plan(shuffled(snapshot, random)) == wanted


@many
@given(worlds(), clusters(), st.integers(0, 64))
def test_nodes_that_nobody_may_use_change_no_decision(world: World, others: list[Node], cpus: int) -> None:
    snapshot = world.snapshot()
    small = machine("a-small", 2, model="A10")
    closed = [
        replace(machine("a-closed", cpus=cpus), cordoned=True),
        replace(small, gpus=tuple(replace(card, memory_bytes=24 * GIB) for card in small.gpus), ready=False),
    ]
    closed += [replace(node, id=NodeId(f"{node.id}-lost"), ready=False) for node in others]
    other = plan(replace(snapshot, nodes={**snapshot.nodes, **{node.id: node for node in closed}}))
    wanted = plan(snapshot)
    assert (other.place, other.preempt, other.promises) == (wanted.place, wanted.preempt, wanted.promises)


@many
@given(worlds(reserved=False))
def test_nobody_waits_for_what_is_free(world: World) -> None:
    """Unless it is kept for somebody who was promised it."""
    snapshot = world.snapshot()
    wanted = plan(snapshot)
    nodes = snapshot.nodes.values()
    there = [*snapshot.running, *(Running(placement, T0) for placement in wanted.place)]
    capacity = Capacity.of(nodes, (one.placement for one in there))
    accounts = QuotaUsage.of(snapshot.queues, nodes, there, snapshot.past_usage, snapshot.now)
    promised = {node for promise in wanted.promises for node in promise.nodes}
    for hold in wanted.hold:
        waiting = world.pending[hold.gang]
        promised_quota = hold.reason is HoldReason.BEHIND and hold.blocked_by[0].startswith("queue:")
        if accounts.refusal(waiting) is None and not promised_quota:
            found = capacity.place(waiting, closed_models=accounts.closed_models(waiting))
            assert found is None or promised & {a.node for a in found.assignments}, hold


@many
@given(worlds())
def test_a_hold_says_what_is_true(world: World) -> None:
    snapshot = world.snapshot()
    wanted = plan(snapshot)
    there = [*snapshot.running, *(Running(placement, T0) for placement in wanted.place)]
    accounts = QuotaUsage.of(
        snapshot.queues, snapshot.nodes.values(), there, snapshot.past_usage, snapshot.now
    )
    capacity = Capacity.of(snapshot.nodes.values(), (one.placement for one in there))
    asked_for = {one.for_gang for one in wanted.preempt} | {one.preempted_for for one in snapshot.running}
    for hold in wanted.hold:
        waiting = world.pending[hold.gang]
        if hold.reason in (HoldReason.NO_CAPACITY, HoldReason.TOPOLOGY):
            assert capacity.place(waiting, closed_models=accounts.closed_models(waiting)) is None
        elif hold.reason is HoldReason.NO_NODES:
            assert not any(node.schedulable for node in snapshot.nodes.values())
        elif hold.reason is HoldReason.USER_LIMIT:
            refused = accounts.refusal(waiting)
            assert refused is not None
            assert refused.reason is hold.reason
        elif hold.reason is HoldReason.QUOTA:
            assert accounts.refusal(waiting) is not None or accounts.closed_models(waiting)
        elif hold.reason is HoldReason.PREEMPTING:
            assert hold.gang in asked_for
            assert hold.blocked_by
        elif hold.reason is HoldReason.RESERVED:
            assert snapshot.reservations


@many
@given(worlds())
def test_who_starts_now_leaves_a_reservation_its_nodes(world: World) -> None:
    snapshot = world.snapshot()
    for placement in plan(snapshot).place:
        waiting = world.pending[placement.gang.id]
        until = snapshot.now + seconds(estimate_duration(waiting, snapshot.durations).high_s)
        for reservation in snapshot.reservations:
            if (
                reservation.start_at < until
                and snapshot.now < reservation.end_at
                and not may_use(waiting, reservation, snapshot.queues)
            ):
                assert not {a.node for a in placement.assignments} & {*reservation.nodes}


@many
@given(clusters(), trees(), st.data())
def test_what_is_reserved_is_for_its_owner_whoever_was_promised_what_comes_after(
    nodes: list[Node], queues: QueueTree, data: st.DataObject
) -> None:
    """Others for whom it is reserved may be promised it, too, and nobody takes what runs were asked to
    leave."""
    world = World({node.id: node for node in nodes}, queues)
    kept = data.draw(st.sampled_from(nodes))
    for node in nodes:
        if node is not kept and data.draw(st.booleans()):  # busy for long
            world.submit(replace(gang(f"old-{node.id}", len(node.gpus), limit_s=5e4), queue=queues.default))
            world.turn()
    there = Reservation(
        ReservationId("r1"),
        "exam",
        T0 - seconds(100),
        T0 + seconds(data.draw(st.sampled_from([200, 2000]))),
        users=("bob",),
        nodes=(kept.id,),
    )
    if data.draw(st.booleans()):
        piece = Resources(data.draw(st.sampled_from([1000, 4000])), GIB, data.draw(st.integers(1, 3)))
        there = replace(there, pieces=(data.draw(st.integers(1, 2)),), resources=piece)
    world.reservations = (there,)
    world.submit(
        *(replace(data.draw(gangs(f"g{i}", queues)), user="ada") for i in range(data.draw(st.integers(1, 3))))
    )
    world.turn()
    owners = [
        replace(data.draw(gangs(f"his{i}", queues)), user="bob") for i in range(data.draw(st.integers(1, 2)))
    ]
    world.submit(*owners)
    snapshot = world.snapshot()
    wanted = plan(snapshot)
    world.apply(wanted)
    promised = [promise for promise in wanted.promises if kept.id in promise.nodes]
    if any(
        promise.has_preempted or may_use(world.pending[promise.gang], there, queues) for promise in promised
    ):
        return
    for hold in wanted.hold:
        if hold.gang in world.pending and may_use(world.pending[hold.gang], there, queues):
            after = BackfillTimeline.of(world.snapshot())
            for promise in wanted.promises:
                waiting = world.pending[promise.gang]
                after.promise(waiting, estimate_duration(waiting, snapshot.durations), previous=promise)
            waiting = world.pending[hold.gang]
            assert (
                after.try_in_reservation(
                    waiting,
                    estimate_duration(waiting, snapshot.durations),
                    after.non_binding_promises(waiting),
                )
                is None
            ), hold


@many
@given(worlds(), st.data())
def test_a_promise_is_kept_or_its_breach_is_reported_with_a_true_cause(
    world: World, data: st.DataObject
) -> None:
    for turn in range(3):
        wanted = world.turn()
        promised = dict(world.promises)
        lost: set[NodeId] = set()
        event = data.draw(
            st.sampled_from(["time", "end", "lose", "submit", "newcomer", "reserve", "learn", "nothing"])
        )
        if event == "time":
            world.now += seconds(data.draw(st.sampled_from([30, 100, 4000])))
        elif event == "end" and world.running:
            world.end(data.draw(st.sampled_from(sorted(world.running))))
        elif event == "lose":
            lost.add(data.draw(st.sampled_from(sorted(world.nodes))))
            for name in lost:
                world.nodes[name] = replace(world.nodes[name], ready=False)
        elif event == "submit":
            world.submit(
                *(
                    replace(one, id=GangId(f"{one.id}+"), priority=90)
                    for one in list(world.pending.values())[:2]
                )
            )
        elif event == "newcomer":
            world.submit(data.draw(gangs(f"new{turn}", world.queues)))
        elif event == "reserve" and not world.reservations:
            world.reservations = (
                replace(
                    data.draw(bookings([*world.nodes.values()], world.queues)),
                    created_at=world.now + seconds(1),
                ),
            )
        elif event == "learn" and (
            there := [*world.pending.values(), *(one.gang for one in world.running.values())]
        ):
            alike, took_s = (
                data.draw(st.sampled_from(there)),
                data.draw(st.sampled_from([5.0, 300.0, 5000.0])),
            )
            world.durations = world.durations | dict.fromkeys(history_keys(alike), (took_s,) * 8)
        snapshot = world.snapshot()
        wanted = plan(snapshot)
        started = {placement.gang.id for placement in wanted.place}
        breaches = {breach.gang: breach for breach in wanted.breaches}
        kept = {promise.gang: promise for promise in wanted.promises}
        assert breaches.keys() <= promised.keys()
        for name, promise in promised.items():
            if name in started:
                assert name not in breaches
                continue
            late = name not in kept or kept[name].start_at > promise.start_at
            assert late == (name in breaches), (promise, kept.get(name))
            if name not in breaches:
                assert snapshot.now <= promise.start_at
                continue
            breach = breaches[name]
            assert breach.detail
            assert breach.promised_at == promise.start_at
            assert breach.expected_at is None or breach.expected_at >= snapshot.now
            assert is_true(breach, promise, world, wanted), breach
            if lost & {*promise.nodes}:
                assert breach.cause is BreachCause.NODE_LOST
        world.apply(wanted)


def is_true(breach: Breach, promise: Promise, world: World, wanted: Plan) -> bool:
    """Whether what a breach says is so, and concerns the nodes that were promised."""
    nodes = {*promise.nodes}
    if breach.detail.startswith(promises.LATE_MESSAGE):
        other = next(
            one
            for one in wanted.breaches
            if breach.detail.startswith(f"{promises.LATE_MESSAGE} {one.gang}: ")
        )
        return other.gang == breach.displaced_by and other.cause is breach.cause
    if breach.cause is BreachCause.NODE_LOST:  # no node of these worlds has less than before
        return any(f"node {name} " in breach.detail and not world.nodes[name].schedulable for name in nodes)
    if breach.cause is BreachCause.RESERVATION:
        return any(
            f"reservation {one.name} " in breach.detail and not nodes.isdisjoint(one.nodes)
            for one in world.reservations
        )
    if breach.cause is BreachCause.QUOTA:
        return any(one.maximum or one.user_limit or one.guarantee for one in world.queues.queues.values())
    if breach.cause is BreachCause.OVERRUN:
        late = next(one for one in world.running.values() if breach.detail.startswith(f"run {one.gang.id} "))
        end = RunEndEstimates.of([late], world.durations, world.now, grace_s=world.grace_s).end(late.gang.id)
        limit_s, began = late.gang.time_limit_s, late.started_at or late.placed_at
        was_sure = limit_s is not None and not late.stopping and began + seconds(limit_s) > promise.start_at
        return (
            end is not None
            and world.now + seconds(end.high_s) > promise.start_at
            and not was_sure
            and not nodes.isdisjoint(_nodes(late.placement))
        )
    ours = world.pending[breach.gang]
    placed = {one.gang.id: one for one in (*wanted.place, *(one.placement for one in world.running.values()))}
    given = {one.gang: {*one.nodes} for one in wanted.promises}
    assert breach.displaced_by is not None and breach.detail.startswith(f"run {breach.displaced_by} ")
    other = (
        placed[breach.displaced_by].gang
        if breach.displaced_by in placed
        else world.pending[breach.displaced_by]
    )
    if nodes.isdisjoint(_nodes(placed[other.id]) if other.id in placed else given[other.id]):
        return False
    if breach.cause is BreachCause.PRIORITY:
        return other.queue == ours.queue and other.priority > ours.priority
    if breach.cause is BreachCause.GUARANTEE:
        return other.queue != ours.queue and any(one.guarantee for one in world.queues.queues.values())
    if breach.cause is BreachCause.SHARE:
        return other.queue != ours.queue or other.priority == ours.priority
    return breach.cause is BreachCause.PROMISE


def _nodes(placement: Placement) -> set[NodeId]:
    return {assignment.node for assignment in placement.assignments}


@many
@given(worlds())
def test_who_makes_room_does_so_by_right_and_for_somebody_who_then_starts(world: World) -> None:
    # whoever is over its time is being ended: what it leaves is counted on
    for one in list(world.running.values()):
        limit_s = one.gang.time_limit_s
        if limit_s is not None and (one.started_at or one.placed_at) + seconds(limit_s) <= world.now:
            del world.running[one.gang.id]
    snapshot = world.snapshot()
    wanted = plan(snapshot)
    running = {one.attempt: one for one in snapshot.running}
    accounts = QuotaUsage.of(
        snapshot.queues,
        snapshot.nodes.values(),
        [one for one in snapshot.running if not one.stopping],
        snapshot.past_usage,
        snapshot.now,
    )
    for placement in wanted.place:
        accounts.charge(placement)
    for preemption in wanted.preempt:
        victim = running[preemption.attempt]
        assert preemption.reason
        assert victim.gang.preemptible
        assert not victim.stopping
        if not preemption.for_gang:
            continue
        waiting = world.pending[preemption.for_gang]
        queue = snapshot.queues.queues[waiting.queue]
        if victim.gang.queue == waiting.queue:
            lower = queue.preempts_lower and victim.gang.priority < waiting.priority
            assert lower or (queue.time_slices and victim.gang.priority == waiting.priority)
        else:
            assert accounts.is_borrowed(victim)
            assert any(
                snapshot.queues.queues[level].reclaims for level in queue_path(snapshot.queues, waiting.queue)
            )
    assert len({preemption.attempt for preemption in wanted.preempt}) == len(wanted.preempt)
    world.apply(wanted)
    again = world.turn()
    assert not {one.attempt for one in again.preempt} & {one.attempt for one in wanted.preempt}
    assert not {one.for_gang for one in again.preempt if one.for_gang} & {
        one.for_gang for one in wanted.preempt
    }
    for one in [one.gang.id for one in world.running.values() if one.stopping]:
        world.leave(one)
    started = {placement.gang.id for placement in (*again.place, *world.turn().place)}
    assert {preemption.for_gang for preemption in wanted.preempt if preemption.for_gang} <= started

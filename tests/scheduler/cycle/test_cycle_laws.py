"""Laws of every scheduling cycle, for any cluster, queues and history."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.breach_causes import BreachCause, NodeUnavailable, PropagatedDelay
from hopyard.domain.cluster import Breach, Node, Plan, Promise, Running, Snapshot
from hopyard.domain.duration_keys import history_keys
from hopyard.domain.effective_limits import queue_path
from hopyard.domain.gang import Placement
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, NodeId, ReservationId
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.scheduler.cycle.planner import plan
from hopyard.scheduler.duration_estimates import estimate_duration
from hopyard.scheduler.explain.breach_messages import breach_message
from hopyard.scheduler.explain.hold_messages import hold_message
from hopyard.scheduler.explain.preemption_messages import preemption_message
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.never_fits import never_fits
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from hopyard.scheduler.timeline.backfill import BackfillTimeline
from hopyard.scheduler.timeline.reservation_windows import may_use
from hopyard.scheduler.timeline.run_end_estimates import RunEndEstimates
from tests.scheduler.cluster_model import (
    GIB,
    T0,
    ClusterModel,
    cluster_models,
    clusters,
    exceeded_limits,
    gang,
    gangs,
    machine,
    overcommitted,
    queue_trees,
    reservations,
    seconds,
    shuffled,
)

many = settings(max_examples=50, deadline=None)


def placements(snapshot: Snapshot, new_plan: Plan) -> list[Placement]:
    """Returns all placements after the plan is applied."""
    return [*(running.placement for running in snapshot.running), *new_plan.place]


@many
@given(cluster_models())
def test_plan_places_or_holds_each_gang_once_in_queue_order(cluster: ClusterModel) -> None:
    snapshot = cluster.snapshot()
    new_plan = plan(snapshot)
    assert sorted([p.gang.id for p in new_plan.place] + [h.gang for h in new_plan.hold]) == sorted(
        g.id for g in snapshot.pending
    )
    assert len(new_plan.hold) == len(list(new_plan.hold))
    for _, of_queue in groupby(new_plan.hold, lambda hold: cluster.pending[hold.gang].queue):
        holds = list(of_queue)
        assert [hold.position for hold in holds] == list(range(1, len(holds) + 1))
        for first, second in pairwise(holds):
            never = [hold.reason is HoldReason.NEVER_FITS for hold in (first, second)]
            assert never != [True, False]
            assert (
                never[0] != never[1]
                or cluster.pending[first.gang].priority >= cluster.pending[second.gang].priority
            )
    for hold in new_plan.hold:
        assert hold_message(hold.cause)
        assert (hold.reason is HoldReason.NEVER_FITS) == (
            never_fits(cluster.pending[hold.gang], snapshot.nodes.values()) is not None
        )


@many
@given(cluster_models())
def test_gang_starts_completely_and_the_state_stays_legal(cluster: ClusterModel) -> None:
    snapshot = cluster.snapshot()
    before = exceeded_limits(
        cluster.queues, cluster.nodes, [running.placement for running in snapshot.running]
    )
    new_plan = plan(snapshot)
    for placement in new_plan.place:
        gang = cluster.pending[placement.gang.id]
        for role, given_role in zip(gang.roles, placement.gang.roles, strict=True):
            assert role.required_replicas <= given_role.replicas <= role.replicas
        assert [a.rank for a in placement.assignments] == list(range(placement.gang.size))
        for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=True):
            assert cluster.nodes[assignment.node].schedulable
            assert len(assignment.gpus) == (role.resources.gpus or int(role.resources.is_gpu_share))
    assert not overcommitted(cluster.nodes, placements(snapshot, new_plan))
    assert {*exceeded_limits(cluster.queues, cluster.nodes, placements(snapshot, new_plan))} <= {*before}


@many
@given(cluster_models(), st.randoms(use_true_random=False))
def test_equal_snapshots_give_equal_plans_in_any_order(cluster: ClusterModel, random: Random) -> None:
    snapshot = cluster.snapshot()
    new_plan = plan(snapshot)
    assert plan(replace(snapshot)) == new_plan
    assert plan(shuffled(snapshot, random)) == new_plan


@many
@given(cluster_models(), clusters(), st.integers(0, 64))
def test_unusable_nodes_change_no_decision(cluster: ClusterModel, others: list[Node], cpus: int) -> None:
    snapshot = cluster.snapshot()
    small = machine("a-small", 2, model="A10")
    closed = [
        replace(machine("a-closed", cpus=cpus), cordoned=True),
        replace(small, gpus=tuple(replace(card, memory_bytes=24 * GIB) for card in small.gpus), ready=False),
    ]
    closed += [replace(node, id=NodeId(f"{node.id}-lost"), ready=False) for node in others]
    other = plan(replace(snapshot, nodes={**snapshot.nodes, **{node.id: node for node in closed}}))
    new_plan = plan(snapshot)
    assert (other.place, other.preempt, other.promises) == (
        new_plan.place,
        new_plan.preempt,
        new_plan.promises,
    )


@many
@given(cluster_models(reserved=False))
def test_no_gang_waits_for_free_unreserved_capacity(cluster: ClusterModel) -> None:
    """Unless the capacity is reserved by a promise."""
    snapshot = cluster.snapshot()
    new_plan = plan(snapshot)
    nodes = snapshot.nodes.values()
    running = [*snapshot.running, *(Running(placement, T0) for placement in new_plan.place)]
    capacity = Capacity.of(nodes, (run.placement for run in running))
    usage = QuotaUsage.of(snapshot.queues, nodes, running, snapshot.past_usage, snapshot.now)
    promised = {node for promise in new_plan.promises for node in promise.nodes}
    for hold in new_plan.hold:
        waiting = cluster.pending[hold.gang]
        promised_quota = hold.reason is HoldReason.BEHIND and hold.blocked_by[0].startswith("queue:")
        if usage.refusal(waiting) is None and not promised_quota:
            result = capacity.place(waiting, closed_models=usage.closed_models(waiting))
            assert result is None or promised & {a.node for a in result.assignments}, hold


@many
@given(cluster_models())
def test_hold_reason_and_detail_are_true(cluster: ClusterModel) -> None:
    snapshot = cluster.snapshot()
    new_plan = plan(snapshot)
    running = [*snapshot.running, *(Running(placement, T0) for placement in new_plan.place)]
    usage = QuotaUsage.of(
        snapshot.queues, snapshot.nodes.values(), running, snapshot.past_usage, snapshot.now
    )
    capacity = Capacity.of(snapshot.nodes.values(), (run.placement for run in running))
    asked_for = {preemption.for_gang for preemption in new_plan.preempt} | {
        run.preempted_for for run in snapshot.running
    }
    for hold in new_plan.hold:
        waiting = cluster.pending[hold.gang]
        if hold.reason in (HoldReason.NO_CAPACITY, HoldReason.TOPOLOGY):
            assert capacity.place(waiting, closed_models=usage.closed_models(waiting)) is None
        elif hold.reason is HoldReason.NO_NODES:
            assert not any(node.schedulable for node in snapshot.nodes.values())
        elif hold.reason is HoldReason.USER_LIMIT:
            refused = usage.refusal(waiting)
            assert refused is not None
            assert refused.reason is hold.reason
        elif hold.reason is HoldReason.QUOTA:
            assert usage.refusal(waiting) is not None or usage.closed_models(waiting)
        elif hold.reason is HoldReason.PREEMPTING:
            assert hold.gang in asked_for
            assert hold.blocked_by
        elif hold.reason is HoldReason.RESERVED:
            assert snapshot.reservations


@many
@given(cluster_models())
def test_gang_that_starts_now_does_not_use_reserved_nodes(cluster: ClusterModel) -> None:
    snapshot = cluster.snapshot()
    for placement in plan(snapshot).place:
        waiting = cluster.pending[placement.gang.id]
        until = snapshot.now + seconds(estimate_duration(waiting, snapshot.durations).high_s)
        for reservation in snapshot.reservations:
            if (
                reservation.start_at < until
                and snapshot.now < reservation.end_at
                and not may_use(waiting, reservation, snapshot.queues)
            ):
                assert not {a.node for a in placement.assignments} & {*reservation.nodes}


@many
@given(clusters(), queue_trees(), st.data())
def test_reservation_owner_uses_it_despite_later_promises(
    nodes: list[Node], queues: QueueTree, data: st.DataObject
) -> None:
    """Other owners of the reservation may get a promise there.

    No gang takes capacity freed by preemptions for it.
    """
    cluster = ClusterModel({node.id: node for node in nodes}, queues)
    reserved_node = data.draw(st.sampled_from(nodes))
    for node in nodes:
        if node is not reserved_node and data.draw(st.booleans()):  # busy for long
            cluster.submit(replace(gang(f"old-{node.id}", len(node.gpus), limit_s=5e4), queue=queues.default))
            cluster.run_cycle()
    reservation = Reservation(
        ReservationId("r1"),
        "exam",
        T0 - seconds(100),
        T0 + seconds(data.draw(st.sampled_from([200, 2000]))),
        users=("bob",),
        nodes=(reserved_node.id,),
    )
    if data.draw(st.booleans()):
        piece = Resources(data.draw(st.sampled_from([1000, 4000])), GIB, data.draw(st.integers(1, 3)))
        reservation = replace(reservation, pieces=(data.draw(st.integers(1, 2)),), resources=piece)
    cluster.reservations = (reservation,)
    cluster.submit(
        *(replace(data.draw(gangs(f"g{i}", queues)), user="ada") for i in range(data.draw(st.integers(1, 3))))
    )
    cluster.run_cycle()
    owners = [
        replace(data.draw(gangs(f"his{i}", queues)), user="bob") for i in range(data.draw(st.integers(1, 2)))
    ]
    cluster.submit(*owners)
    snapshot = cluster.snapshot()
    new_plan = plan(snapshot)
    cluster.apply(new_plan)
    promised = [promise for promise in new_plan.promises if reserved_node.id in promise.nodes]
    if any(
        promise.has_preempted or may_use(cluster.pending[promise.gang], reservation, queues)
        for promise in promised
    ):
        return
    for hold in new_plan.hold:
        if hold.gang in cluster.pending and may_use(cluster.pending[hold.gang], reservation, queues):
            after = BackfillTimeline.of(cluster.snapshot())
            for promise in new_plan.promises:
                waiting = cluster.pending[promise.gang]
                after.promise(waiting, estimate_duration(waiting, snapshot.durations), previous=promise)
            waiting = cluster.pending[hold.gang]
            assert (
                after.try_in_reservation(
                    waiting,
                    estimate_duration(waiting, snapshot.durations),
                    after.non_binding_promises(waiting),
                )
                is None
            ), hold


@many
@given(cluster_models(), st.data())
def test_promise_is_kept_or_its_breach_is_reported_with_a_true_cause(
    cluster: ClusterModel, data: st.DataObject
) -> None:
    for cycle in range(3):
        new_plan = cluster.run_cycle()
        promised = dict(cluster.promises)
        lost: set[NodeId] = set()
        event = data.draw(
            st.sampled_from(["time", "end", "lose", "submit", "newcomer", "reserve", "learn", "nothing"])
        )
        if event == "time":
            cluster.now += seconds(data.draw(st.sampled_from([30, 100, 4000])))
        elif event == "end" and cluster.running:
            cluster.finish(data.draw(st.sampled_from(sorted(cluster.running))))
        elif event == "lose":
            lost.add(data.draw(st.sampled_from(sorted(cluster.nodes))))
            for name in lost:
                cluster.nodes[name] = replace(cluster.nodes[name], ready=False)
        elif event == "submit":
            cluster.submit(
                *(
                    replace(gang, id=GangId(f"{gang.id}+"), priority=90)
                    for gang in list(cluster.pending.values())[:2]
                )
            )
        elif event == "newcomer":
            cluster.submit(data.draw(gangs(f"new{cycle}", cluster.queues)))
        elif event == "reserve" and not cluster.reservations:
            cluster.reservations = (
                replace(
                    data.draw(reservations([*cluster.nodes.values()], cluster.queues)),
                    created_at=cluster.now + seconds(1),
                ),
            )
        elif event == "learn" and (
            there := [*cluster.pending.values(), *(run.gang for run in cluster.running.values())]
        ):
            alike, took_s = (
                data.draw(st.sampled_from(there)),
                data.draw(st.sampled_from([5.0, 300.0, 5000.0])),
            )
            cluster.durations = cluster.durations | dict.fromkeys(history_keys(alike), (took_s,) * 8)
        snapshot = cluster.snapshot()
        new_plan = plan(snapshot)
        started = {placement.gang.id for placement in new_plan.place}
        breaches = {breach.gang: breach for breach in new_plan.breaches}
        kept = {promise.gang: promise for promise in new_plan.promises}
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
            assert breach_message(breach.detail)
            assert breach.promised_at == promise.start_at
            assert breach.expected_at is None or breach.expected_at >= snapshot.now
            assert is_true(breach, promise, cluster, new_plan), breach
            if lost & {*promise.nodes}:
                assert breach.cause is BreachCause.NODE_LOST
        cluster.apply(new_plan)


def is_true(breach: Breach, promise: Promise, cluster: ClusterModel, new_plan: Plan) -> bool:
    """Whether the cause of a breach is true and concerns the promised nodes."""
    nodes = {*promise.nodes}
    detail = breach.detail
    if isinstance(detail, PropagatedDelay):
        other = next(other for other in new_plan.breaches if other.gang == detail.run)
        return other.gang == breach.displaced_by and other.cause is breach.cause
    if breach.cause is BreachCause.NODE_LOST:  # no node of these clusters has less than before
        assert isinstance(detail, NodeUnavailable)
        return detail.node in nodes and not cluster.nodes[detail.node].schedulable
    if breach.cause is BreachCause.RESERVATION:
        return any(
            getattr(detail, "reservation", None) == reservation.name
            and not nodes.isdisjoint(reservation.nodes)
            for reservation in cluster.reservations
        )
    if breach.cause is BreachCause.QUOTA:
        return any(
            queue.maximum or queue.user_limit or queue.guarantee for queue in cluster.queues.queues.values()
        )
    if breach.cause is BreachCause.OVERRUN:
        late = next(run for run in cluster.running.values() if run.gang.id == getattr(detail, "run", None))
        end = RunEndEstimates.of([late], cluster.durations, cluster.now, grace_s=cluster.grace_s).end(
            late.gang.id
        )
        limit_s, began = late.gang.time_limit_s, late.started_at or late.placed_at
        was_sure = limit_s is not None and not late.stopping and began + seconds(limit_s) > promise.start_at
        return (
            end is not None
            and cluster.now + seconds(end.high_s) > promise.start_at
            and not was_sure
            and not nodes.isdisjoint(_nodes(late.placement))
        )
    ours = cluster.pending[breach.gang]
    placed = {
        placement.gang.id: placement
        for placement in (*new_plan.place, *(run.placement for run in cluster.running.values()))
    }
    promised_nodes = {promise.gang: {*promise.nodes} for promise in new_plan.promises}
    assert breach.displaced_by is not None and getattr(detail, "run", None) == breach.displaced_by
    other = (
        placed[breach.displaced_by].gang
        if breach.displaced_by in placed
        else cluster.pending[breach.displaced_by]
    )
    if nodes.isdisjoint(_nodes(placed[other.id]) if other.id in placed else promised_nodes[other.id]):
        return False
    if breach.cause is BreachCause.PRIORITY:
        return other.queue == ours.queue and other.priority > ours.priority
    if breach.cause is BreachCause.GUARANTEE:
        return other.queue != ours.queue and any(queue.guarantee for queue in cluster.queues.queues.values())
    if breach.cause is BreachCause.SHARE:
        return other.queue != ours.queue or other.priority == ours.priority
    return breach.cause is BreachCause.PROMISE


def _nodes(placement: Placement) -> set[NodeId]:
    return {assignment.node for assignment in placement.assignments}


@many
@given(cluster_models())
def test_preemptions_are_allowed_and_their_preemptor_starts(cluster: ClusterModel) -> None:
    # a run beyond its time limit is being stopped: its capacity counts as soon free
    for run in list(cluster.running.values()):
        limit_s = run.gang.time_limit_s
        if limit_s is not None and (run.started_at or run.placed_at) + seconds(limit_s) <= cluster.now:
            del cluster.running[run.gang.id]
    snapshot = cluster.snapshot()
    new_plan = plan(snapshot)
    running = {run.attempt: run for run in snapshot.running}
    usage = QuotaUsage.of(
        snapshot.queues,
        snapshot.nodes.values(),
        [run for run in snapshot.running if not run.stopping],
        snapshot.past_usage,
        snapshot.now,
    )
    for placement in new_plan.place:
        usage.charge(placement)
    for preemption in new_plan.preempt:
        victim = running[preemption.attempt]
        assert preemption_message(preemption.cause)
        assert victim.gang.preemptible
        assert not victim.stopping
        if not preemption.for_gang:
            continue
        waiting = cluster.pending[preemption.for_gang]
        queue = snapshot.queues.queues[waiting.queue]
        if victim.gang.queue == waiting.queue:
            lower = queue.preempts_lower and victim.gang.priority < waiting.priority
            assert lower or (queue.time_slices and victim.gang.priority == waiting.priority)
        else:
            assert usage.is_borrowed(victim)
            assert any(
                snapshot.queues.queues[level].reclaims for level in queue_path(snapshot.queues, waiting.queue)
            )
    assert len({preemption.attempt for preemption in new_plan.preempt}) == len(new_plan.preempt)
    cluster.apply(new_plan)
    again = cluster.run_cycle()
    assert not {preemption.attempt for preemption in again.preempt} & {
        preemption.attempt for preemption in new_plan.preempt
    }
    assert not {preemption.for_gang for preemption in again.preempt if preemption.for_gang} & {
        preemption.for_gang for preemption in new_plan.preempt
    }
    for gang_id in [run.gang.id for run in cluster.running.values() if run.stopping]:
        cluster.evict(gang_id)
    started = {placement.gang.id for placement in (*again.place, *cluster.run_cycle().place)}
    assert {preemption.for_gang for preemption in new_plan.preempt if preemption.for_gang} <= started

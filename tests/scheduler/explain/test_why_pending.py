"""Why a gang is pending and when it starts: the explanations are true."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hopyard.domain.breach_causes import BreachCause, PriorityPrecedence
from hopyard.domain.cluster import Breach, Plan, Snapshot
from hopyard.domain.duration_keys import history_keys
from hopyard.domain.gang import Assignment, Gang, NodeSelector, Placement, Role
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, NodeId, PoolName, QueueName, ReservationId
from hopyard.domain.queue import GPU, Queue, QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.scheduler.cycle.planner import plan
from hopyard.scheduler.duration_estimates import estimate_duration
from hopyard.scheduler.explain.lookahead import expected_starts
from hopyard.scheduler.explain.pending_messages import unknown_duration_message
from hopyard.scheduler.explain.what_if import MAX_EXACT_MINUTES, SUGGESTED_LIMITS_S, alternatives
from hopyard.scheduler.explain.why_pending import PendingExplanation, explain_pending
from hopyard.scheduler.timeline.run_end_estimates import RunEndEstimates
from tests.scheduler.cluster_model import ClusterModel, cluster_models, gang, queue, tree
from tests.scheduler.cluster_model import machine as cluster_machine
from tests.scheduler.timeline_clusters import T0, limited_gang, machine, running_attempt, seconds, snapshot


def busy_cluster(*pending: Gang, queues: QueueTree | None = None) -> Snapshot:
    """n1 with 8 GPUs: 4 are in use for 100 s, 2 for 1000 s, 2 are free.

    t1 in pool t4 has 4 GPUs, in use for 720 s.
    """
    running = [
        running_attempt(
            Placement(limited_gang("a", 4, limit_s=100), (Assignment(0, NodeId("n1"), (0, 1, 2, 3)),))
        ),
        running_attempt(
            Placement(limited_gang("b", 2, limit_s=1000), (Assignment(0, NodeId("n1"), (4, 5)),))
        ),
        running_attempt(
            Placement(limited_gang("c", 4, limit_s=720), (Assignment(0, NodeId("t1"), (0, 1, 2, 3)),))
        ),
    ]
    nodes = [machine("n1", 8, pool="a100"), machine("t1", 4, pool="t4", model="T4")]
    result = snapshot(nodes, running, pending)
    return replace(result, queues=queues) if queues else result


def explain_run(view: Snapshot, name: str) -> PendingExplanation:
    explanation = explain_pending(view, plan(view), limited_gang(name).id)
    assert explanation is not None
    return explanation


def what_if_lines(explanation: PendingExplanation) -> list[str]:
    return [line.text for line in explanation.what_if]


def test_blockers_hold_the_resources_that_the_gang_lacks() -> None:
    """`cpus` ends later, but there are CPUs enough."""
    running = [
        running_attempt(
            Placement(limited_gang("gpus", 4, limit_s=100), (Assignment(0, NodeId("n0"), (0, 1, 2, 3)),))
        ),
        running_attempt(Placement(limited_gang("cpus", 0, limit_s=50), (Assignment(0, NodeId("n0"), ()),))),
    ]
    explanation = explain_run(snapshot([machine("n0", 4)], running, [limited_gang("wide", 4)]), "wide")
    assert [blocker.name for blocker in explanation.blocked_by] == ["run:gpus"]


def test_victims_are_expected_to_end_soon_in_the_cycle_that_preempts_them() -> None:
    running = [
        running_attempt(
            Placement(
                replace(limited_gang("low", 4, limit_s=9000), priority=0),
                (Assignment(0, NodeId("n0"), (0, 1, 2, 3)),),
            )
        )
    ]
    view = snapshot([machine("n0", 4)], running, [replace(limited_gang("high", 4, limit_s=100), priority=9)])
    explanation = explain_run(view, "high")
    assert explanation.hold.reason is HoldReason.PREEMPTING
    assert explanation.expected is not None and explanation.promised_at is not None
    assert explanation.expected.high_at <= explanation.promised_at < T0 + seconds(100)


A100 = NodeSelector((PoolName("a100"),))


def test_explanation_has_expected_start_blockers_and_alternatives() -> None:
    explanation = explain_run(busy_cluster(limited_gang("wide", 8, limit_s=600, where=A100)), "wide")
    assert (
        explanation.hold.reason is HoldReason.NO_CAPACITY
        and explanation.hold.position == 1
        and explanation.pending_count == 1
    )
    assert explanation.expected is not None and explanation.expected.mid_at == T0 + seconds(1000)
    assert [(blocker.name, blocker.until) for blocker in explanation.blocked_by[:2]] == [
        ("run:b", T0 + seconds(1000)),
        ("run:a", T0 + seconds(100)),
    ]
    assert "with 2 GPUs: now" in what_if_lines(explanation)
    assert not any(line.startswith("with --time") for line in what_if_lines(explanation))


def test_later_promise_does_not_delay_the_expected_start() -> None:
    running = [
        running_attempt(
            Placement(limited_gang("short", 2, limit_s=60), (Assignment(0, NodeId("n1"), (0, 1)),))
        ),
        running_attempt(
            Placement(limited_gang("long", 2, limit_s=3600), (Assignment(0, NodeId("n1"), (2, 3)),))
        ),
    ]
    view = snapshot(
        [machine("n1", 4)], running, [limited_gang("first", 1, limit_s=60), limited_gang("second", 2, at_s=1)]
    )
    explanation = explain_run(view, "first")
    assert explanation.expected is not None and explanation.promised_at is not None
    assert (explanation.expected.mid_at, explanation.expected.high_at) == (T0 + seconds(60),) * 2
    assert explanation.promised_at >= T0 + seconds(60)
    later = explain_run(view, "second")
    assert later.expected is not None and later.expected.mid_at == T0 + seconds(120)


def test_run_that_may_reach_a_reservation_starts_after_it() -> None:
    """Its like took 40 s, but it may take 600: with a time limit that ends before, it starts now."""
    exam = Reservation(
        ReservationId("r"),
        "exam",
        T0 + seconds(220),
        T0 + seconds(900),
        users=("eve",),
        nodes=(NodeId("n1"),),
    )
    view = replace(
        snapshot(
            [machine("n1", 4)], [], [limited_gang("late", 1, limit_s=600)], durations={"all": (40.0,) * 20}
        ),
        reservations=(exam,),
    )
    explanation = explain_run(view, "late")
    assert explanation.hold.reason is HoldReason.RESERVED
    assert (
        explanation.expected is not None
        and explanation.expected.low_at == explanation.expected.mid_at == T0 + seconds(900)
    )
    assert [alternative.text for alternative in explanation.what_if] == ["with --time 3m: now, by backfill"]


@pytest.mark.parametrize("every_s", [0.0, 86400.0])
def test_reservation_that_must_end_first_is_a_blocker(every_s: float) -> None:
    """The earlier run ends after 60 s, but the gang would still run when the reservation begins."""
    running = [
        running_attempt(
            Placement(limited_gang("short", 2, limit_s=60), (Assignment(0, NodeId("n1"), (0, 1)),))
        )
    ]
    exam = Reservation(
        ReservationId("r"),
        "exam",
        T0 + seconds(300),
        T0 + seconds(900),
        users=("eve",),
        nodes=(NodeId("n1"),),
        every_s=every_s,
    )
    view = replace(
        snapshot([machine("n1", 4)], running, [limited_gang("wide", 4, limit_s=600)]), reservations=(exam,)
    )
    explanation = explain_run(view, "wide")
    assert explanation.expected is not None and explanation.expected.mid_at == T0 + seconds(900)
    assert [
        (blocker.name, blocker.until)
        for blocker in explanation.blocked_by
        if blocker.name.startswith("reservation:")
    ] == [("reservation:exam", T0 + seconds(900))]


def test_expected_end_follows_reported_progress() -> None:
    began = T0 - seconds(100)
    long = replace(
        running_attempt(
            Placement(limited_gang("a", 8, limit_s=None), (Assignment(0, NodeId("n1"), (*range(8),)),))
        ),
        placed_at=began,
        started_at=began,
    )
    view = snapshot([machine("n1", 8)], [long], [limited_gang("g", 8)])
    for part, more_s in ((0.25, 300), (0.5, 100)):
        result = explain_pending(view, plan(view), limited_gang("g").id, {long.gang.id: part})
        assert result is not None and result.expected is not None
        assert result.expected.mid_at == T0 + seconds(more_s)
        assert result.expected.high_at == T0 + seconds(1.5 * more_s)
    explanation = explain_pending(
        view, plan(view), limited_gang("g").id, {long.gang.id: 0.001}
    )  # its start counts too much
    assert explanation == explain_run(view, "g")


def test_slow_victim_is_named_as_the_cause_of_the_wait() -> None:
    leaving = replace(
        running_attempt(
            Placement(limited_gang("a", 8, limit_s=None), (Assignment(0, NodeId("n1"), (*range(8),)),))
        ),
        stopping=True,
        preempted_for=limited_gang("g").id,
        preempt_requested_at=T0 - seconds(40),
    )
    explanation = explain_run(
        replace(snapshot([machine("n1", 8)], [leaving], [limited_gang("g", 8)]), preempt_grace_s=600.0), "g"
    )
    band = explanation.expected
    assert band is not None
    assert (band.low_at, band.mid_at, band.high_at) == (T0 + seconds(1), T0 + seconds(40), T0 + seconds(560))
    assert [(blocker.name, blocker.until) for blocker in explanation.blocked_by] == [
        ("run:a", T0 + seconds(40))
    ]


@pytest.mark.parametrize(
    ("placed_s", "low_s", "mid_s", "high_s"),
    [
        (8, 22, 292, 292),  # as usual
        (240, 30, 540, 1020),  # builds an environment, probably for as long again
    ],
)
def test_slowly_starting_run_is_named_as_the_cause_of_the_wait(
    placed_s: int, low_s: int, mid_s: int, high_s: int
) -> None:
    """The running time counts from the start of its processes: after four minutes of preparation, none of its
    five minutes has passed."""
    starting = replace(
        running_attempt(
            Placement(limited_gang("a", 8, limit_s=300), (Assignment(0, NodeId("n1"), (*range(8),)),)),
            T0 - seconds(placed_s),
        ),
        started_at=None,
    )
    explanation = explain_run(snapshot([machine("n1", 8)], [starting], [limited_gang("g", 8)]), "g")
    band = explanation.expected
    assert band is not None
    assert (band.low_at, band.mid_at, band.high_at) == (
        T0 + seconds(low_s),
        T0 + seconds(mid_s),
        T0 + seconds(high_s),
    )
    assert [(blocker.name, blocker.until) for blocker in explanation.blocked_by] == [
        ("run:a", T0 + seconds(mid_s))
    ]


def test_another_pool_is_suggested_with_its_start() -> None:
    explanation = explain_run(
        busy_cluster(
            limited_gang("four", 4, limit_s=600, where=A100),
            limited_gang("first", 6, limit_s=3000, where=A100, at_s=-5),
        ),
        "four",
    )
    assert "in pool t4: in 12 min" in what_if_lines(explanation)


def test_shorter_time_limit_is_suggested_for_backfill() -> None:
    explanation = explain_run(
        busy_cluster(
            limited_gang("wide", 8, limit_s=600, where=A100, at_s=-5),
            limited_gang("one", 2, limit_s=3600, where=A100),
        ),
        "one",
    )
    assert explanation.hold.reason is HoldReason.BEHIND and "run:wide" in [
        blocker.name for blocker in explanation.blocked_by
    ]
    assert "with --time 16m: now, by backfill" in what_if_lines(
        explanation
    )  # a little less than until `wide` starts


def test_another_queue_is_suggested_when_the_quota_is_used_up() -> None:
    tree = QueueTree({
        QueueName("default"): Queue(QueueName("default"), maximum={GPU: 10000}),
        QueueName("free"): Queue(QueueName("free")),
        QueueName("closed"): Queue(QueueName("closed"), submitters=("bob",)),
    })  # fmt: skip
    explanation = explain_run(busy_cluster(limited_gang("two", 2, limit_s=600), queues=tree), "two")
    assert explanation.hold.reason is HoldReason.QUOTA and explanation.blocked_by[0].name == "queue:default"
    assert "in queue free: now" in what_if_lines(explanation) and not any(
        "closed" in line for line in what_if_lines(explanation)
    )


def test_capacity_that_a_waiting_gang_would_take_is_not_suggested() -> None:
    """n0 is full for long, except for 2 GPUs that should be free already.

    3 GPUs of n1 are free, and `wide` waits for the fourth. With a request for 2 it would not wait, and
    `pair`, which waits for those of n0, would take them.
    """
    running = [
        running_attempt(
            Placement(limited_gang("over", 2, limit_s=600), (Assignment(0, NodeId("n0"), (0, 1)),)),
            since=T0 - seconds(1000),
        ),
        running_attempt(
            Placement(limited_gang("long", 2, limit_s=None), (Assignment(0, NodeId("n0"), (2, 3)),))
        ),
        running_attempt(
            Placement(limited_gang("last", 1, limit_s=None), (Assignment(0, NodeId("n1"), (0,)),)),
            since=T0 - seconds(1000),
        ),
    ]
    wide, pair = (
        limited_gang("wide", 4, limit_s=None, user="bob", at_s=-5),
        limited_gang("pair", 1, replicas=2, limit_s=None),
    )
    view = snapshot([machine("n0", 4), machine("n1", 4)], running, [wide, pair])
    planned = plan(view)
    assert {promise.gang: promise.nodes for promise in planned.promises} == {
        wide.id: ("n1",),
        pair.id: ("n0",),
    }
    two = replace(wide, roles=limited_gang("wide", 2).roles)
    after = plan(
        replace(
            view,
            pending=(two, pair),
            promises={promise.gang: promise for promise in planned.promises if promise.gang == pair.id},
        )
    )
    assert [placement.gang.id for placement in after.place] == [pair.id]
    assert [line for line in what_if_lines(explain_run(view, "wide")) if line.endswith("now")] == [
        "with 1 GPU: now"
    ]


def test_too_few_similar_runs_give_no_expected_start_and_a_note() -> None:
    for history_length, note in (
        (0, "no similar run has ended yet"),
        (2, "only 2 similar runs have ended"),
        (8, ""),
    ):
        cluster = ClusterModel({NodeId("n"): cluster_machine("n", 1)}, tree(queue("q")))
        for key in history_keys(gang("any", script="a.py", queue="q")):
            cluster.durations[key] = tuple(30.0 + one for one in range(history_length))
        cluster.submit(gang("runs", 1, script="a.py", queue="q"))
        cluster.run_cycle()
        cluster.submit(gang("waits", 1, script="a.py", queue="q", limit_s=60, at=1))
        view = cluster.snapshot()
        planned = plan(view)
        assert (GangId("waits") in expected_starts(view, planned)) == (not note)
        explanation = explain_pending(view, planned, GangId("waits"))
        assert explanation is not None
        unknown = explanation.unknown_duration
        assert (unknown is None) == (not note)
        assert unknown is None or unknown_duration_message(unknown, str.upper) == (
            f"{note}, so the duration of run RUNS is uncertain"
        )


def test_own_runs_of_the_user_are_blockers_at_the_user_limit() -> None:
    cluster = ClusterModel({NodeId("n"): cluster_machine("n", 8)}, tree(queue("q", user_limit={GPU: 2000})))
    cluster.submit(
        gang("mine", 2, queue="q", limit_s=100), gang("other", 2, queue="q", user="bob", limit_s=50)
    )
    cluster.run_cycle()
    cluster.submit(gang("waits", 1, queue="q", limit_s=60, at=1))
    view = cluster.snapshot()
    explanation = explain_pending(view, plan(view), GangId("waits"))
    assert explanation is not None and explanation.hold.reason is HoldReason.USER_LIMIT
    assert [(blocker.name, blocker.until) for blocker in explanation.blocked_by] == [
        ("run:mine", T0 + seconds(100))
    ]


def test_unknown_durations_give_a_wide_estimate() -> None:
    view = busy_cluster(limited_gang("wide", 8, limit_s=600, where=A100))
    running = tuple(
        replace(run, placement=replace(run.placement, gang=replace(run.gang, time_limit_s=None)))
        for run in view.running
    )
    explanation = explain_run(replace(view, running=running), "wide")
    assert (
        explanation.expected is not None
        and explanation.expected.low_at < explanation.expected.mid_at < explanation.expected.high_at
    )
    assert explanation.expected.high_at > T0 + seconds(86400)


def test_gang_that_never_fits_has_no_expected_start() -> None:
    explanation = explain_run(busy_cluster(limited_gang("huge", 64)), "huge")
    assert explanation.hold.reason is HoldReason.NEVER_FITS and explanation.expected is None
    assert "with 2 GPUs: now" in what_if_lines(explanation)


def test_gang_that_is_not_pending_has_no_explanation() -> None:
    view = busy_cluster(limited_gang("one", 1))
    assert explain_pending(view, plan(view), limited_gang("one").id) is None
    assert explain_pending(view, plan(view), limited_gang("nobody").id) is None


def test_gangs_ahead_in_a_long_queue_delay_the_start() -> None:
    line = [limited_gang(f"g{i:03}", 8, limit_s=1000, where=A100, at_s=i) for i in range(120)]
    view = busy_cluster(*line)
    explanation = explain_run(view, "g119")
    assert explanation.hold.position == 120 and explanation.expected is not None
    assert T0 + seconds(50_000) < explanation.expected.mid_at < T0 + seconds(250_000)


def test_suggested_time_limits_are_in_order() -> None:
    assert [limit_s for _, limit_s in SUGGESTED_LIMITS_S] == sorted(
        (limit_s for _, limit_s in SUGGESTED_LIMITS_S), reverse=True
    )


@settings(max_examples=25, deadline=None)
@given(cluster_models(most_pending=5))
def test_suggestion_to_start_now_starts_now(cluster: ClusterModel) -> None:
    view = cluster.snapshot()
    planned = plan(view)
    for hold in planned.hold[:3]:
        gang = next(gang for gang in view.pending if gang.id == hold.gang)
        explanation = explain_pending(view, planned, gang.id)
        assert explanation is not None and explanation.hold == hold
        if explanation.expected is not None:
            assert (
                view.now
                <= explanation.expected.low_at
                <= explanation.expected.mid_at
                <= explanation.expected.high_at
            )
        for line in explanation.what_if:
            if line.start_at <= view.now:
                assert _starts_now(cluster, planned, gang, hold.reason, line.text)


@settings(max_examples=40, deadline=None)
@given(cluster_models(reserved=False))
def test_expected_start_keeps_promises(cluster: ClusterModel) -> None:
    """If no run exceeds its estimate and none is being preempted.

    A later expected start implies a breach with the stated cause.
    """
    for running in list(cluster.running.values()):
        limit_s = running.gang.time_limit_s
        if (
            limit_s is not None
            and running.started_at is not None
            and running.started_at + seconds(limit_s + 5) <= cluster.now
        ):
            cluster.finish(running.gang.id)
    cluster.run_cycle()
    cluster.now += seconds(1)
    for leaving in [running.gang.id for running in cluster.running.values() if running.stopping]:
        cluster.evict(leaving)
    view = cluster.snapshot()
    planned = plan(view)
    assume(not planned.preempt)
    for promise in planned.promises:
        explanation = explain_pending(view, planned, promise.gang)
        assert explanation is not None
        assert explanation.promised_at == promise.start_at
        assert explanation.expected is not None
        if explanation.expected.mid_at > promise.start_at + seconds(1):
            breach = _simulate(cluster)[1][promise.gang]
            # no run is longer than its limit
            assert breach.cause is not BreachCause.OVERRUN and breach.detail == explanation.delay


def _starts_now(cluster: ClusterModel, planned: Plan, gang: Gang, reason: HoldReason, text: str) -> bool:
    """Whether the gang starts in the next cycle with this request, which changes the planned cycle too."""
    view, after = cluster.snapshot(), deepcopy(cluster)
    groups = alternatives(gang, reason, view, [*range(5, 60, 5), *range(60, 60 * MAX_EXACT_MINUTES, 60)])
    changed = next(
        change.gang for group in groups for change in group if text.startswith(f"{change.text}: now")
    )
    after.apply(planned)
    after.promises.pop(gang.id, None)
    after.submit(changed)
    return any(placement.gang.id == gang.id for placement in after.run_cycle().place)


def test_every_alternative_requests_less_or_something_different() -> None:
    gang = limited_gang("g", 8, replicas=4, cpus=16, where=A100)
    view = busy_cluster(gang)
    result = [change for group in alternatives(gang, HoldReason.NO_CAPACITY, view) for change in group]
    assert len({change.text for change in result}) == len(result)
    for change in result:
        before, after = gang.roles[0], change.gang.roles[0]
        less = (after.replicas, after.resources.gpus, after.resources.cpu_milli) < (
            before.replicas,
            before.resources.gpus,
            before.resources.cpu_milli,
        )
        assert change.gang.id == gang.id and (
            less or _is_elsewhere(after, before) or change.gang.time_limit_s != gang.time_limit_s
        )


def _is_elsewhere(after: Role, before: Role) -> bool:
    return after.where != before.where


def test_gang_waiting_for_shared_quota_counts_gangs_of_sibling_queues() -> None:
    """`c` may use 3 GPUs, all guaranteed to `y`: when one of its runs ends, `y3` starts before `x1` of the
    sibling queue."""
    queues = tree(queue("root"), queue("c", "root", maximum=3), queue("x", "c"), queue("y", "c", guarantee=3))
    cluster = ClusterModel({NodeId("n"): cluster_machine("n", 8)}, queues)
    cluster.submit(gang("y1", queue="y", limit_s=1000), gang("y2", queue="y", limit_s=2500))
    cluster.run_cycle()
    cluster.submit(
        gang("y3", 2, queue="y", user="bob", limit_s=3000, at=1),
        gang("x1", 2, queue="x", user="cy", limit_s=100, at=2),
    )
    view = cluster.snapshot()
    explanation = explain_pending(view, plan(view), GangId("x1"))
    assert explanation is not None and explanation.expected is not None
    assert explanation.hold.reason is HoldReason.QUOTA
    assert explanation.expected.mid_at == cluster.now + seconds(4000)


def test_gang_held_back_for_the_users_earlier_gang_is_explained() -> None:
    """Bob may use 4 of the queue's 6 GPUs and uses 3: `two` waits for two GPUs, and after some time `one` is
    held back for it."""
    cluster = ClusterModel(
        {NodeId("n"): cluster_machine("n", 8)}, tree(queue("b", maximum=6, user_limit={GPU: 4000}))
    )
    cluster.submit(
        gang("bobs", 3, queue="b", user="bob", limit_s=3000),
        gang("cys", 3, queue="b", user="cy", limit_s=200),
    )
    cluster.run_cycle()
    cluster.submit(
        gang("two", 2, queue="b", user="bob", limit_s=100, at=1),
        gang("one", 1, queue="b", user="bob", limit_s=1000, at=2),
    )
    view = cluster.snapshot()
    explanation = explain_pending(view, plan(view), GangId("one"))
    assert explanation is not None and explanation.expected is not None
    assert explanation.expected.mid_at == cluster.now + seconds(3000)


def test_promised_gang_is_expected_after_gangs_that_outrank_it() -> None:
    """`low` was promised both CPUs before the gangs of higher priority were submitted."""
    cluster = ClusterModel({NodeId("n"): cluster_machine("n", 0, cpus=2)}, tree(queue("q")))
    cluster.submit(gang("f1", 0, queue="q", limit_s=20), gang("f2", 0, queue="q", limit_s=20))
    cluster.run_cycle()
    cluster.submit(gang("low", 0, cpus=2, queue="q", priority=20, limit_s=5, at=1))
    cluster.run_cycle()
    cluster.submit(*(gang(f"m{i}", 0, queue="q", limit_s=60, at=2 + i) for i in range(4)))
    names, (starts, breaches) = ["m0", "m1", "m2", "m3", "low"], _simulate(cluster)
    assert _expected_starts_s(cluster, names) == [20, 20, 80, 80, 140] == [starts[name] for name in names]
    view = cluster.snapshot()
    explanation = explain_pending(view, plan(view), GangId("low"))
    assert explanation is not None and explanation.delay == breaches["low"].detail == PriorityPrecedence(
        GangId("m1"), 50, 20
    )


def test_gang_held_back_for_a_larger_gang_is_expected_after_it() -> None:
    """The duration of `there` is unknown, and `small` has no limit: it never certainly ends before `large`
    may start."""
    cluster = ClusterModel({NodeId("n"): cluster_machine("n", 0, cpus=2)}, tree(queue("q")))
    cluster.submit(gang("there", 0, queue="q"))
    cluster.run_cycle()
    cluster.submit(gang("large", 0, cpus=2, queue="q", limit_s=600, at=1), gang("small", 0, queue="q", at=2))
    view = cluster.snapshot()
    large, small = (explain_pending(view, plan(view), GangId(name)) for name in ("large", "small"))
    assert small is not None and small.hold.reason is HoldReason.BEHIND and small.expected is not None
    assert large is not None and large.expected is not None
    assert small.expected.mid_at >= large.expected.mid_at + seconds(600)
    assert small.expected.high_at >= large.expected.high_at + seconds(600)
    assert [(blocker.name, blocker.until) for blocker in small.blocked_by] == [
        ("run:large", small.expected.mid_at)
    ]
    assert [line.text for line in small.what_if] == ["with --time 1h: now, by backfill"]


def test_suggested_time_limit_of_seconds_is_not_rounded() -> None:
    cluster = ClusterModel({NodeId("n"): cluster_machine("n", 0, cpus=2)}, tree(queue("q")))
    cluster.submit(gang("there", 0, queue="q", limit_s=42))
    cluster.run_cycle()
    cluster.submit(
        gang("large", 0, cpus=2, queue="q", limit_s=600, at=1), gang("small", 0, queue="q", limit_s=300, at=2)
    )
    view = cluster.snapshot()
    explanation = explain_pending(view, plan(view), GangId("small"))
    assert explanation is not None and [line.text for line in explanation.what_if] == [
        "with --time 40s: now, by backfill"
    ]


def test_gang_is_not_promised_capacity_of_a_gang_before_it() -> None:
    """`second` belongs to the user who already has a promise, and has a higher priority than `low`."""
    cluster = ClusterModel({NodeId("n"): cluster_machine("n", 2)}, tree(queue("q")))
    cluster.submit(gang("there", 2, queue="q", limit_s=60))
    cluster.run_cycle()
    cluster.submit(
        gang("first", queue="q", at=1),
        gang("second", queue="q", at=2),
        gang("low", cpus=2, queue="q", user="bob", priority=10, at=3),
    )
    assert [promise.gang for promise in plan(cluster.snapshot()).promises] == ["first"]
    for name in ("second", "low"):
        cluster.pending.pop(GangId(name))
    cluster.submit(gang("low", cpus=2, queue="q", user="bob", priority=10, at=3))
    assert [promise.gang for promise in plan(cluster.snapshot()).promises] == ["first", "low"]


def test_gang_held_back_for_an_older_quota_request_does_not_start_now() -> None:
    """`late`, in the sibling queue, has waited long for 4 GPUs of the shared quota: until `first` ends, no
    other gang gets any."""
    queues = tree(queue("top", maximum=7), queue("a", "top"), queue("b", "top"))
    cluster = ClusterModel({NodeId("n"): cluster_machine("n", 8)}, queues)
    cluster.submit(gang("first", 4, queue="b", limit_s=3000))
    cluster.run_cycle()
    cluster.submit(gang("late", 4, queue="a", limit_s=60, at=1))
    cluster.now += seconds(100)
    cluster.submit(gang("new", 1, queue="b", user="bob", limit_s=20, at=100))
    view = cluster.snapshot()
    explanation = explain_pending(view, plan(view), GangId("new"))
    assert (
        explanation is not None
        and explanation.hold.reason is HoldReason.BEHIND
        and explanation.hold.blocked_by == ("run:late",)
    )
    assert explanation.expected is not None and explanation.expected.mid_at == T0 + seconds(3000)


@settings(max_examples=25, deadline=None)
@given(cluster_models(most_pending=6, reserved=False), st.sampled_from([{}, {"all": (30.0, 40.0, 60.0) * 4}]))
def test_expected_starts_come_true_if_durations_are_as_expected(
    cluster: ClusterModel, durations: dict[str, tuple[float, ...]]
) -> None:
    """For gangs with known durations: they take as long as their limit or as similar runs."""
    for running in list(cluster.running.values()):
        limit_s, began = running.gang.time_limit_s, running.started_at
        if limit_s is None or began is None or running.stopping or began + seconds(limit_s) <= cluster.now:
            cluster.finish(running.gang.id)
        else:
            staying = replace(running.gang, preemptible=False)
            cluster.running[running.gang.id] = replace(
                running, placement=replace(running.placement, gang=staying)
            )
    for waiting in list(cluster.pending.values()):
        cluster.pending[waiting.id] = cluster.originals[waiting.id] = replace(
            waiting, time_limit_s=waiting.time_limit_s or 500.0, preemptible=False
        )
    cluster.durations = durations
    names, view = list(cluster.pending), cluster.snapshot()
    planned = plan(view)
    expected_s, (simulated, _) = _expected_starts_s(cluster, names), _simulate(cluster)
    for name, at_s in zip(names, expected_s, strict=True):
        assert at_s == simulated.get(name)
    listed = expected_starts(view, planned)
    assert {name: (at - T0).total_seconds() for name, at in listed.items()} == {
        name: simulated[name] for name in listed
    }
    assert listed.keys() == {promise.gang for promise in planned.promises}


@settings(max_examples=25, deadline=None)
@given(cluster_models(), st.sampled_from([{}, {"all": (30.0, 40.0, 60.0) * 4}]), st.booleans())
def test_listing_and_explanation_have_the_same_expected_start(
    cluster: ClusterModel, durations: dict[str, tuple[float, ...]], halfway: bool
) -> None:
    """Also for preempted, unlimited and elastic runs, with any reported progress."""
    cluster.durations = durations
    cluster.run_cycle()
    cluster.now += seconds(3)
    view = cluster.snapshot()
    progress = dict.fromkeys(cluster.running, 0.5) if halfway else {}
    planned = plan(view)
    for name, at in expected_starts(view, planned, progress).items():
        explanation = explain_pending(view, planned, name, progress)
        assert explanation is not None and explanation.expected is not None
        assert explanation.expected.mid_at == at


def test_promised_run_ahead_counts_with_its_likely_duration() -> None:
    """Its like took 30 s, and it may take 600."""
    cluster = ClusterModel({NodeId("n"): cluster_machine("n", 1)}, tree(queue("q")))
    cluster.durations = {"all": (30.0,) * 8}
    cluster.submit(gang("there", queue="q", user="cy", limit_s=600))
    cluster.run_cycle()
    cluster.submit(
        gang("first", queue="q", limit_s=600, at=1), gang("second", queue="q", user="bob", limit_s=600, at=2)
    )
    view = cluster.snapshot()
    planned = plan(view)
    assert [promise.gang for promise in planned.promises] == ["first", "second"]
    assert expected_starts(view, planned) == {
        GangId("first"): T0 + seconds(30),
        GangId("second"): T0 + seconds(60),
    }


def test_start_after_an_unknown_duration_is_not_predicted_on_other_nodes() -> None:
    """`wide` waits for `unknown` on n0, and `last` for `wide` on n1."""
    cluster = ClusterModel(
        {NodeId(name): cluster_machine(name, 1, pool=name) for name in ("n0", "n1")}, tree(queue("q"))
    )
    n0, n1 = NodeSelector((PoolName("n0"),)), NodeSelector((PoolName("n1"),))
    cluster.submit(
        gang("unknown", queue="q", user="cy", where=n0),
        gang("known", queue="q", user="cy", limit_s=60, where=n1),
    )
    cluster.run_cycle()
    cluster.submit(
        gang("wide", replicas=2, queue="q", limit_s=60, at=1),
        gang("last", queue="q", user="bob", limit_s=9999, where=n1, at=2),
    )
    view = cluster.snapshot()
    planned = plan(view)
    assert [promise.gang for promise in planned.promises] == ["wide", "last"]
    assert expected_starts(view, planned) == {}
    assert len(expected_starts(view, planned, {GangId("unknown"): 0.5})) == 2


def _expected_starts_s(cluster: ClusterModel, names: list[str]) -> list[float | None]:
    """Returns the expected start of each gang in seconds from T0, None if it has none."""
    view = cluster.snapshot()
    planned, result = plan(view), list[float | None]()
    for name in names:
        explanation = explain_pending(view, planned, GangId(name))
        if explanation is None:
            result.append(
                (view.now - T0).total_seconds()
                if any(placement.gang.id == name for placement in planned.place)
                else None
            )
        else:
            result.append(
                None if explanation.expected is None else (explanation.expected.mid_at - T0).total_seconds()
            )
    return result


def _simulate(cluster: ClusterModel) -> tuple[dict[str, float], dict[str, Breach]]:
    """Returns the simulated start of each pending gang, in seconds from T0, and the first breach of each
    promise, if all durations are as expected."""
    simulation, starts, breaches, leaving = (
        deepcopy(cluster),
        dict[str, float](),
        dict[str, Breach](),
        set[GangId](),
    )
    view, durations = simulation.snapshot(), dict(simulation.durations)
    run_ends = RunEndEstimates.of(view.running, durations, view.now, pick_s=lambda expected: expected.mid_s)
    ends = {end.gang: view.now + seconds(end.mid_s) for end in run_ends.ends()}
    for _ in range(200):
        new_plan = simulation.run_cycle()
        breaches = {breach.gang: breach for breach in new_plan.breaches} | breaches
        for placement in new_plan.place:
            starts[placement.gang.id] = (simulation.now - T0).total_seconds()
            ends[placement.gang.id] = simulation.now + seconds(
                max(estimate_duration(placement.gang, durations).mid_s, 1)
            )
        for asked_to in new_plan.preempt:
            leaving.add(asked_to.gang)
            ends[asked_to.gang] = min(ends[asked_to.gang], simulation.now + seconds(5))
        times = [*ends.values(), *([new_plan.next_cycle_at] if new_plan.next_cycle_at else [])]
        if not simulation.pending or not times:
            break
        simulation.now = max(min(times), simulation.now + seconds(1))
        for name in [name for name, end in ends.items() if end <= simulation.now]:
            del ends[name]
            (simulation.evict if name in leaving else simulation.finish)(name)
            leaving.discard(name)
        simulation.durations = dict(durations)  # nothing is learned
    return starts, breaches

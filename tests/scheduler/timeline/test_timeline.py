"""The timeline, case by case."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from hopyard.domain.breach_causes import BreachCause
from hopyard.domain.cluster import Promise, Running
from hopyard.domain.gang import Assignment, Placement
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, NodeId, QueueName, ReservationId
from hopyard.domain.queue import GPU, SINGLE_QUEUE_TREE, Queue, QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.scheduler.duration_estimates import DurationEstimate, estimate_duration
from hopyard.scheduler.explain.breach_messages import breach_message
from hopyard.scheduler.timeline.backfill import BackfillTimeline
from hopyard.scheduler.timeline.block_reason import BlockReason
from hopyard.scheduler.timeline.reservation_preemption import ReservationPreemptions, preempt_for_reservations
from hopyard.scheduler.timeline.run_end_estimates import RunEndEstimates
from tests.scheduler.timeline_clusters import (
    T0,
    TimelineSimulation,
    limited_gang,
    machine,
    priority_rule,
    running_attempt,
    seconds,
    snapshot,
)

FULL = [machine("n1", 2), machine("n2", 2)]


def exact(gang_limit_s: float) -> DurationEstimate:
    return DurationEstimate(gang_limit_s, gang_limit_s, gang_limit_s, is_limit=True)


def half_busy() -> BackfillTimeline:
    """n1 is full until 100 s and n2 has one free GPU until 300 s; `wide` needs both complete nodes."""
    running = [
        running_attempt(Placement(limited_gang("a", 2, limit_s=100), (Assignment(0, NodeId("n1"), (0, 1)),))),
        running_attempt(Placement(limited_gang("b", 1, limit_s=300), (Assignment(0, NodeId("n2"), (0,)),))),
    ]
    return BackfillTimeline.of(snapshot(FULL, running))


def test_blocked_gang_is_promised_the_end_of_the_last_needed_run() -> None:
    timeline, wide = half_busy(), limited_gang("wide", 2, replicas=2)
    result = timeline.try_backfill(wide, exact(100))
    assert isinstance(result, BlockReason) and result.reason is HoldReason.NO_CAPACITY
    promise = timeline.promise(wide, exact(100))
    assert promise is not None and promise.start_at == T0 + seconds(300) and promise.nodes == ("n1", "n2")
    assert timeline.blocking_runs(wide.id) == ("run:b", "run:a")


def test_gang_that_ends_before_a_promised_start_is_backfilled() -> None:
    timeline = half_busy()
    timeline.promise(limited_gang("wide", 2, replicas=2), exact(100))
    assert isinstance(timeline.try_backfill(limited_gang("short"), exact(300)), Placement)
    late = timeline.try_backfill(limited_gang("long"), exact(301))
    assert (
        isinstance(late, BlockReason)
        and late.reason is HoldReason.BEHIND
        and late.blocked_by == ("run:wide",)
    )


def test_gang_of_unknown_duration_is_not_backfilled() -> None:
    timeline = half_busy()
    timeline.promise(limited_gang("wide", 2, replicas=2), exact(100))
    assert isinstance(
        timeline.try_backfill(
            limited_gang("unknown", limit_s=None),
            estimate_duration(limited_gang("unknown", limit_s=None), {}),
        ),
        BlockReason,
    )


def test_gang_beside_promised_capacity_is_backfilled_for_any_duration() -> None:
    timeline = half_busy()
    promise = timeline.promise(limited_gang("two", 2), exact(100))
    assert promise is not None and promise.nodes == ("n1",) and promise.start_at == T0 + seconds(100)
    result = timeline.try_backfill(limited_gang("beside"), exact(10_000))
    assert isinstance(result, Placement) and result.assignments[0].node == "n2"


def test_renewed_promise_keeps_its_nodes_and_start() -> None:
    first = half_busy()
    promise = first.promise(limited_gang("two", 2, limit_s=50), exact(50))
    later = replace(promise, start_at=T0 + seconds(200)) if promise else None
    again = half_busy()
    renewed = again.promise(limited_gang("two", 2, limit_s=50), exact(50), previous=later)
    assert (
        renewed == later
        and again.explain_breach(limited_gang("two", 2), later, renewed, priority_rule) is None
    )  # type: ignore[arg-type]
    assert again.expected_start_at(limited_gang("two").id) == T0 + seconds(100)


def test_second_promise_starts_after_the_latest_end_of_the_first() -> None:
    history = {"all": (100.0,) * 20}
    running = [
        running_attempt(Placement(limited_gang("a", 2, limit_s=300), (Assignment(0, NodeId("n1"), (0, 1)),)))
    ]
    timeline = BackfillTimeline.of(snapshot([machine("n1", 2)], running, durations=history))
    first, second = (
        timeline.promise(limited_gang("first", 2), exact(50)),
        timeline.promise(limited_gang("second", 2), exact(50)),
    )
    assert first is not None and first.start_at == T0 + seconds(300)
    assert second is not None and second.start_at == T0 + seconds(350)
    assert timeline.expected_start_at(limited_gang("second", 2).id) == T0 + seconds(150)


def test_earlier_start_of_a_promised_gang_delays_no_promise() -> None:
    running = [
        running_attempt(Placement(limited_gang("a", 2, limit_s=100), (Assignment(0, NodeId("n1"), (0, 1)),)))
    ]
    timeline = BackfillTimeline.of(snapshot([machine("n1", 2)], running))
    early = Promise(GangId("early"), T0 + seconds(500), T0 - seconds(20), (NodeId("n1"),))
    due = Promise(GangId("due"), T0 + seconds(100), T0 - seconds(10), (NodeId("n1"),))
    result = timeline.renew_promises(
        [(limited_gang("early", 2), exact(200), early), (limited_gang("due", 2), exact(200), due)]
    )
    assert result == {"early": early, "due": due}
    assert timeline.expected_start_at(GangId("due")) == T0 + seconds(100)
    assert timeline.expected_start_at(GangId("early")) == T0 + seconds(300)


def test_promise_beside_another_promise_is_kept() -> None:
    """`wide` may be on n1 and n2, or on n1 alone, where `narrow` would have to wait for `later`, though not
    longer than was promised."""
    wide, narrow = limited_gang("wide", replicas=2), limited_gang("narrow")
    later = running_attempt(
        Placement(limited_gang("later", limit_s=45), (Assignment(0, NodeId("n1"), (2,)),))
    )
    timeline = BackfillTimeline.of(snapshot([machine("n1", 3), machine("n2", 1)], [later]))
    first = Promise(wide.id, T0 + seconds(60), T0, (NodeId("n1"), NodeId("n2")))
    second = Promise(narrow.id, T0 + seconds(60), T0 + seconds(0.1), (NodeId("n1"),))
    timeline.renew_promises(
        [(wide, exact(100), first), (narrow, exact(100), second)], protected={wide.id, narrow.id}
    )
    assert timeline.expected_start_at(wide.id) == timeline.expected_start_at(narrow.id) == T0


def test_first_gang_leaves_free_capacity_that_lets_another_start_now() -> None:
    """`large` could use the free GPU and that of `later`, or both GPUs of `leaving`.

    With the latter `small` starts now, not only after `leaving` has ended.
    """
    large, small = limited_gang("large", 2), limited_gang("small")
    leaving = replace(
        running_attempt(Placement(limited_gang("leaving", 2), (Assignment(0, NodeId("n1"), (1, 2)),))),
        stopping=True,
    )
    later = running_attempt(Placement(limited_gang("later", limit_s=2), (Assignment(0, NodeId("n1"), (3,)),)))
    timeline = BackfillTimeline.of(snapshot([machine("n1", 4)], [leaving, later]))
    promises = {
        one.id: Promise(one.id, T0 + seconds(60), T0 + seconds(at_s), (NodeId("n1"),))
        for at_s, one in ((0.1, large), (0, small))
    }
    timeline.renew_promises(
        [(promised, exact(100), promises[promised.id]) for promised in (large, small)], protected=promises
    )
    assert (timeline.expected_start_at(small.id), timeline.expected_start_at(large.id)) == (
        T0,
        T0 + seconds(5),
    )


@pytest.mark.parametrize(
    ("asked_s", "preempted_for", "mid_s", "high_s"),
    [
        (None, "x", 5, 600),
        (0, "x", 5, 600),
        (3, "x", 5, 597),
        (40, "x", 40, 560),  # as long again
        (400, "x", 200, 200),  # its grace is over then
        (700, "x", 1, 1),
        (-50, "x", 5, 600),  # the clock was set back
        (40, None, 20, 20),
    ],
)
def test_slow_victim_is_expected_to_take_as_long_again(
    asked_s: float | None, preempted_for: str | None, mid_s: float, high_s: float
) -> None:
    leaving = replace(
        running_attempt(Placement(limited_gang("leaving", 2), (Assignment(0, NodeId("n1"), (1, 2)),))),
        stopping=True,
        preempted_for=None if preempted_for is None else GangId(preempted_for),
        preempt_requested_at=None if asked_s is None else T0 - seconds(asked_s),
    )
    (likely,) = RunEndEstimates.of(
        [leaving], {}, T0, grace_s=600.0, pick_s=lambda expected: expected.mid_s
    ).ends()
    assert likely.mid_s == mid_s
    (planned,) = RunEndEstimates.of([leaving], {}, T0, grace_s=600.0).ends()
    assert (planned.mid_s, planned.high_s) == (min(5, high_s), high_s)


def test_lost_node_breaks_a_promise_and_is_named() -> None:
    promise = half_busy().promise(limited_gang("two", 2), exact(50))
    assert promise is not None
    running = [
        running_attempt(Placement(limited_gang("b", 2, limit_s=300), (Assignment(0, NodeId("n2"), (0, 1)),)))
    ]
    timeline = BackfillTimeline.of(snapshot([replace(FULL[0], ready=False), FULL[1]], running))
    after = timeline.promise(limited_gang("two", 2), exact(50), previous=promise)
    breach = timeline.explain_breach(limited_gang("two", 2), promise, after, priority_rule)
    assert (
        breach is not None and breach.cause is BreachCause.NODE_LOST and "n1" in breach_message(breach.detail)
    )
    assert breach.expected_at == T0 + seconds(300)


def test_overrun_breaks_a_promise_and_is_named() -> None:
    history = {"all": (100.0,) * 20}
    running = [
        running_attempt(Placement(limited_gang("a", 2, limit_s=None), (Assignment(0, NodeId("n1"), (0, 1)),)))
    ]
    promise = BackfillTimeline.of(snapshot(FULL[:1], running, durations=history)).promise(
        limited_gang("two", 2), exact(50)
    )
    assert promise is not None and promise.start_at <= T0 + seconds(110)
    timeline = BackfillTimeline.of(snapshot(FULL[:1], running, durations=history, now=T0 + seconds(120)))
    breach = timeline.explain_breach(
        limited_gang("two", 2),
        promise,
        timeline.promise(limited_gang("two", 2), exact(50), previous=promise),
        priority_rule,
    )
    assert (
        breach is not None
        and breach.cause is BreachCause.OVERRUN
        and "run a" in breach_message(breach.detail)
    )


def test_run_expected_beyond_the_promised_start_did_not_overrun() -> None:
    """Long after the promised start both runs are late, but only one of them was expected to end before
    it."""
    running = [
        running_attempt(Placement(limited_gang("first", limit_s=100), (Assignment(0, NodeId("n1"), (0,)),))),
        running_attempt(Placement(limited_gang("then", limit_s=300), (Assignment(0, NodeId("n1"), (1,)),))),
    ]
    promise = BackfillTimeline.of(snapshot([machine("n1", 2)], running)).promise(
        limited_gang("one"), exact(50)
    )
    assert promise is not None and promise.start_at == T0 + seconds(100)
    timeline = BackfillTimeline.of(snapshot([machine("n1", 2)], running, now=T0 + seconds(4000)))
    breach = timeline.explain_breach(
        limited_gang("one"),
        promise,
        timeline.promise(limited_gang("one"), exact(50), previous=promise),
        priority_rule,
    )
    assert breach is not None and breach_message(breach.detail) == "run first runs longer than expected"


@pytest.mark.parametrize("is_known", [True, False])
def test_run_that_started_slowly_overran(is_known: bool) -> None:
    """Its time limit counts from the start of its processes, which was unknown when the promise was made."""
    starting = replace(
        running_attempt(Placement(limited_gang("a", 2, limit_s=100), (Assignment(0, NodeId("n1"), (0, 1)),))),
        started_at=None,
    )
    now = T0 + seconds(70)
    promise = BackfillTimeline.of(snapshot(FULL[:1], [starting], now=T0 + seconds(10))).promise(
        limited_gang("two", 2), exact(50)
    )
    assert promise is not None and promise.start_at == T0 + seconds(100)
    started = replace(starting, started_at=T0 + seconds(60) if is_known else None)
    timeline = BackfillTimeline.of(snapshot(FULL[:1], [started], now=now))
    breach = timeline.explain_breach(
        limited_gang("two", 2),
        promise,
        timeline.promise(limited_gang("two", 2), exact(50), previous=promise),
        priority_rule,
    )
    if not is_known:
        assert breach is None
        return
    assert breach is not None
    assert (breach.cause, breach_message(breach.detail)) == (
        BreachCause.OVERRUN,
        "run a runs longer than expected",
    )


def test_gang_placed_before_the_promise_is_named_as_priority() -> None:
    promise = BackfillTimeline.of(snapshot([machine("n1", 2)])).promise(limited_gang("two", 2), exact(50))
    assert promise is not None
    timeline = BackfillTimeline.of(snapshot([machine("n1", 2)]))
    placement = timeline.try_backfill(limited_gang("jumper", limit_s=500), exact(500))
    assert isinstance(placement, Placement)
    timeline.start(placement, exact(500))
    breach = timeline.explain_breach(
        limited_gang("two", 2),
        promise,
        timeline.promise(limited_gang("two", 2), exact(50), previous=promise),
        priority_rule,
    )
    assert (
        breach is not None
        and breach.cause is BreachCause.PRIORITY
        and "run jumper" in breach_message(breach.detail)
    )


def two_long_runs() -> list[Running]:
    """Two runs on n1 with four GPUs: one that was never expected to end before `three` starts, and one of two
    GPUs for which it waits."""
    return [
        running_attempt(
            Placement(limited_gang("long", limit_s=10_000), (Assignment(0, NodeId("n1"), (0,)),)),
            since=T0 - seconds(10),
        ),
        running_attempt(Placement(limited_gang("a", 2, limit_s=100), (Assignment(0, NodeId("n1"), (1, 2)),))),
    ]


@pytest.mark.parametrize(
    ("happened", "cause", "named"),
    [
        ("started", BreachCause.PRIORITY, "run jumper has priority 1, this one 0"),
        ("began", BreachCause.PRIORITY, "run jumper has priority 1, this one 0"),
        ("promised", BreachCause.PRIORITY, "run first has priority 1, this one 0"),
        ("smaller", BreachCause.NODE_LOST, "n1 has less capacity than before"),
        ("limited", BreachCause.QUOTA, "its queue can use less quota then than expected"),
        ("overran", BreachCause.OVERRUN, "run b runs longer than expected"),
        ("overran, and tomorrow is reserved", BreachCause.OVERRUN, "run b runs longer than expected"),
        ("reserved", BreachCause.RESERVATION, "reservation exam was granted after the promise"),
        (
            "takes longer, before what was reserved all the time",
            BreachCause.RESERVATION,
            "reservation exam starts before its new expected end",
        ),
        ("learned", BreachCause.OVERRUN, "run b is now expected to run longer"),
    ],
)
def test_breach_names_the_new_cause_only(happened: str, cause: BreachCause, named: str) -> None:
    three, running, nodes = limited_gang("three", 3), two_long_runs(), [machine("n1", 4)]
    begins_s = 86_400 if "tomorrow" in happened else 120
    exam = Reservation(
        ReservationId("r"),
        "exam",
        T0 + seconds(begins_s),
        T0 + seconds(begins_s + 500),
        users=("eve",),
        nodes=(NodeId("n1"),),
        created_at=T0 + seconds(5),
    )
    known = []
    if happened.startswith("takes longer"):
        exam = replace(exam, created_at=T0 - seconds(1000))
        known = [exam]
    unlimited = limited_gang("b", limit_s=None)
    if happened == "learned":
        running.append(running_attempt(Placement(unlimited, (Assignment(0, NodeId("n1"), (3,)),))))
    promise = BackfillTimeline.of(
        snapshot(nodes, running, durations={"all": (10.0,) * 20}, reservations=known)
    ).promise(three, exact(10))
    assert promise is not None and promise.start_at == T0 + seconds(100)
    tree, durations, now = SINGLE_QUEUE_TREE, {}, T0 + seconds(10)
    jumper = Placement(limited_gang("jumper", limit_s=500), (Assignment(0, NodeId("n1"), (3,)),))
    if happened == "began":
        running.append(running_attempt(jumper, since=T0 + seconds(5)))
    elif happened == "smaller":
        nodes = [machine("n1", 3)]
    elif happened == "limited":
        tree = QueueTree({QueueName("default"): Queue(QueueName("default"), maximum={GPU: 3000})})
    elif happened.startswith("overran"):  # it was backfilled because similar runs took ten seconds
        running, durations = (
            [*running, running_attempt(replace(jumper, gang=unlimited), since=T0 + seconds(5))],
            {"all": (10.0,) * 20},
        )
        now = T0 + seconds(90)
    elif happened == "learned":
        durations = {"all": (10_000.0,) * 20}
    reservations = [exam] if "reserved" in happened else []
    timeline = BackfillTimeline.of(
        snapshot(nodes, running, queues=tree, durations=durations, now=now, reservations=reservations)
    )
    if happened == "started":
        timeline.start(jumper, exact(500))
    elif happened == "promised":
        timeline.promise(limited_gang("first", 2, limit_s=500), exact(500))
    breach = timeline.explain_breach(
        three, promise, timeline.promise(three, exact(50), previous=promise), priority_rule
    )
    assert breach is not None and (breach.cause, breach_message(breach.detail)) == (cause, named)


def test_due_promise_is_not_backfilled() -> None:
    timeline = BackfillTimeline.of(snapshot([machine("n1", 2)]))
    promise = timeline.promise(limited_gang("due", 2), exact(50))
    assert promise is not None and promise.start_at == T0
    result = timeline.try_backfill(limited_gang("other"), exact(10))
    assert (
        isinstance(result, BlockReason)
        and result.reason is HoldReason.BEHIND
        and result.blocked_by == ("run:due",)
    )
    assert isinstance(timeline.try_backfill(limited_gang("due", 2), exact(50)), Placement)


def test_promise_includes_quota() -> None:
    tree = QueueTree({QueueName("default"): Queue(QueueName("default"), maximum={GPU: 3000})})
    running = [
        running_attempt(Placement(limited_gang("a", 2, limit_s=100), (Assignment(0, NodeId("n1"), (0, 1)),)))
    ]
    timeline = BackfillTimeline.of(snapshot([machine("n1", 2), machine("n2", 4)], running, queues=tree))
    three = limited_gang("three", 3)
    result = timeline.try_backfill(three, exact(100))
    assert (
        isinstance(result, BlockReason)
        and result.reason is HoldReason.QUOTA
        and result.blocked_by == ("queue:default",)
    )
    promise = timeline.promise(three, exact(100))
    assert promise is not None and promise.start_at == T0 + seconds(100)
    assert isinstance(timeline.try_backfill(limited_gang("short"), exact(100)), Placement)
    assert isinstance(timeline.try_backfill(limited_gang("long"), exact(101)), BlockReason)


def test_reserved_capacity_is_for_its_owner() -> None:
    reservation = Reservation(
        ReservationId("r"), "exam", T0 + seconds(50), T0 + seconds(500), users=("bob",), nodes=(NodeId("n1"),)
    )
    timeline = BackfillTimeline.of(snapshot(FULL[:1], reservations=[reservation]))
    assert isinstance(timeline.try_backfill(limited_gang("short"), exact(50)), Placement)
    result = timeline.try_backfill(limited_gang("long"), exact(51))
    assert (
        isinstance(result, BlockReason)
        and result.reason is HoldReason.RESERVED
        and result.blocked_by == ("reservation:exam",)
    )
    assert isinstance(timeline.try_backfill(limited_gang("his", user="bob"), exact(1000)), Placement)
    promise = timeline.promise(limited_gang("long"), exact(51))
    assert promise is not None and promise.start_at == T0 + seconds(500)


def test_promise_after_a_reservation_does_not_bind_its_owner() -> None:
    reservation = Reservation(
        ReservationId("r"), "exam", T0 - seconds(50), T0 + seconds(500), users=("bob",), nodes=(NodeId("n1"),)
    )
    wide, his = limited_gang("wide", len(FULL[0].gpus)), limited_gang("his", user="bob")
    timeline = BackfillTimeline.of(snapshot(FULL[:1], reservations=[reservation]))
    promise = timeline.promise(wide, exact(100))
    assert promise is not None and promise.start_at == T0 + seconds(500)
    assert isinstance(timeline.try_backfill(his, exact(500)), Placement)
    result = timeline.try_backfill(his, exact(501))
    assert isinstance(result, BlockReason) and result.reason is HoldReason.BEHIND

    assert (
        timeline.try_in_reservation(
            limited_gang("hers"), exact(1), timeline.non_binding_promises(limited_gang("hers"))
        )
        is None
    )
    placement = timeline.try_in_reservation(his, exact(501), timeline.non_binding_promises(his))
    assert placement is not None
    timeline.start(placement, exact(501))
    after = timeline.promise(wide, exact(100), previous=promise)
    assert after is not None and after.start_at == T0 + seconds(501)
    assert timeline.reservation_of(placement) == "exam"


@pytest.mark.parametrize(("first_takes_s", "starts_s"), [(100, 100), (450, 450), (501, 1501)])
def test_owner_is_promised_reserved_capacity_despite_later_promises(
    first_takes_s: float, starts_s: float
) -> None:
    reservation = Reservation(
        ReservationId("r"), "exam", T0 - seconds(50), T0 + seconds(500), users=("bob",), nodes=(NodeId("n1"),)
    )
    first = Placement(
        limited_gang("first", 2, user="bob", limit_s=first_takes_s), (Assignment(0, NodeId("n1"), (0, 1)),)
    )
    timeline = BackfillTimeline.of(snapshot(FULL[:1], [running_attempt(first)], reservations=[reservation]))
    wide = timeline.promise(limited_gang("wide", 2), exact(100))
    hers = timeline.promise(limited_gang("hers", 2, user="eve"), exact(900))
    his = timeline.promise(limited_gang("his", 2, user="bob"), exact(1000))
    assert wide is not None and wide.start_at == T0 + seconds(max(first_takes_s, 500))
    assert hers is not None and hers.start_at == wide.start_at + seconds(100)
    assert his is not None and his.start_at == T0 + seconds(starts_s)


def test_unreserved_part_of_a_node_is_promised() -> None:
    reservation = Reservation(
        ReservationId("r"),
        "exam",
        T0 - seconds(50),
        T0 + seconds(500),
        users=("bob",),
        nodes=(NodeId("n1"),),
        pieces=(2,),
        resources=Resources(1000, 0, 1),
    )
    timeline, wide = (
        BackfillTimeline.of(snapshot([machine("n1", 4)], reservations=[reservation])),
        limited_gang("wide", 4),
    )
    promise = timeline.promise(wide, exact(100))
    assert promise is not None and promise.start_at == T0 + seconds(500)
    assert timeline.try_in_reservation(limited_gang("three", 3, user="bob"), exact(501), [wide.id]) is None
    assert timeline.promise(wide, exact(100)) == promise
    two = timeline.try_in_reservation(limited_gang("two", 2, user="bob", cpus=9), exact(501), [wide.id])
    assert two is not None


def test_reserved_piece_leaves_the_rest_of_the_node_free() -> None:
    reservation = Reservation(
        ReservationId("r"),
        "exam",
        T0 - seconds(50),
        T0 + seconds(500),
        users=("bob",),
        nodes=(NodeId("n1"),),
        pieces=(1,),
        resources=Resources(1000, 0, 3),
    )
    timeline = BackfillTimeline.of(snapshot([machine("n1", 4)], reservations=[reservation]))
    assert isinstance(timeline.try_backfill(limited_gang("two", 2), exact(1000)), BlockReason)
    beside = timeline.try_backfill(limited_gang("one"), exact(1000))
    assert isinstance(beside, Placement)
    timeline.start(beside, exact(1000))
    owner = timeline.try_backfill(limited_gang("his", 3, user="bob"), exact(1000))
    assert isinstance(owner, Placement)
    timeline.start(owner, exact(1000))
    assert isinstance(timeline.try_backfill(limited_gang("more"), exact(1)), BlockReason)


def test_no_preemption_on_an_unschedulable_node_for_a_reservation() -> None:
    place = Placement(limited_gang("two", 2, limit_s=9999), (Assignment(0, NodeId("n1"), (0, 1)),))
    for resources in (None, Resources(1000, 0, 3)):
        reservation = Reservation(
            ReservationId("r"),
            "exam",
            T0 - seconds(50),
            T0 + seconds(500),
            users=("bob",),
            nodes=(NodeId("n1"),),
            pieces=() if resources is None else (1,),
            resources=resources,
        )
        for node, preemptions_at in (
            (machine("n1", 4), ["two"]),
            (replace(machine("n1", 4), cordoned=True), []),
            (replace(machine("n1", 4), ready=False), []),
        ):
            view = snapshot([node], [running_attempt(place)])
            result = preempt_for_reservations(
                [reservation],
                RunEndEstimates.of(view.running, {}, T0),
                view.nodes,
                view.queues,
                T0,
                grace_s=60.0,
            )
            assert [preemption.gang for preemption in result.preemptions] == preemptions_at


def test_next_cycle_is_scheduled_for_the_expected_end_before_a_reservation() -> None:
    reservation = Reservation(
        ReservationId("r"),
        "exam",
        T0 + seconds(150),
        T0 + seconds(500),
        users=("bob",),
        nodes=(NodeId("n1"),),
    )
    place = Placement(limited_gang("two", 2, limit_s=None), (Assignment(0, NodeId("n1"), (0, 1)),))
    durations = {"all": (40.0,) * 20}

    def preemptions_at(now_s: float) -> ReservationPreemptions:
        view = snapshot(
            [machine("n1", 4)], [running_attempt(place)], now=T0 + seconds(now_s), durations=durations
        )
        return preempt_for_reservations(
            [reservation],
            RunEndEstimates.of(view.running, durations, view.now),
            view.nodes,
            view.queues,
            view.now,
            grace_s=60.0,
        )

    first = preemptions_at(1)
    assert not first.preemptions
    assert first.recheck_at is not None and T0 + seconds(40) < first.recheck_at < T0 + seconds(60)
    assert [preemption.gang for preemption in preemptions_at(100).preemptions] == ["two"]


@pytest.mark.parametrize("duration_source", ["nothing", "history", "limit"])
def test_large_gang_is_not_overtaken_forever(duration_source: str) -> None:
    """One gang of 64 GPUs among an endless stream of one-GPU runs starts within twice the shortest possible
    wait."""
    takes_s, simulation, names = 600.0, TimelineSimulation([machine(f"n{i}", 8) for i in range(8)]), count()
    if duration_source == "history":
        simulation.durations = {"all": (takes_s,) * 50}

    def submit_small_runs(many: int) -> None:
        for _ in range(many):
            small = limited_gang(f"s{next(names)}", limit_s=takes_s if duration_source == "limit" else None)
            simulation.duration_s[small.id] = takes_s
            simulation.pending.append(small)

    for step in range(64):  # one run starts every few seconds, so that they never end together
        submit_small_runs(1)
        simulation.now = T0 + seconds(step * takes_s / 64)
        simulation.run_cycle()
    arrived = simulation.now
    shortest_s = max(
        (simulation.ends_at(run) - arrived).total_seconds() for run in simulation.running.values()
    )
    wide = limited_gang("wide", 8, replicas=8, limit_s=None)
    simulation.duration_s[wide.id] = takes_s
    simulation.pending.insert(0, wide)
    for _ in range(300):
        submit_small_runs(2)
        simulation.run_cycle()
        if wide.id in simulation.started:
            break
        end = simulation.next_end()
        assert end is not None
        simulation.now = max(end, simulation.now + seconds(1))
    assert wide.id in simulation.started
    assert (simulation.started[wide.id] - arrived).total_seconds() <= 2 * shortest_s

"""What holds of every timeline, over small generated clusters whose runs take exactly as long as they say."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import PREEMPT_GRACE_S, Node, Running
from hopyard.domain.gang import Assignment, Gang, Placement
from hopyard.domain.ids import NodeId, ReservationId
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.scheduler.duration_estimates import DurationEstimate, estimate_duration
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.feasibility import min_gpu_milli
from hopyard.scheduler.timeline.backfill import BackfillTimeline
from hopyard.scheduler.timeline.earliest_fit_index import EarliestFitIndex
from hopyard.scheduler.timeline.release_schedule import ReleaseSchedule
from hopyard.scheduler.timeline.reservation_admission import Admitted, Rejected, admit_reservation
from hopyard.scheduler.timeline.run_end_estimates import OVERDUE_WINDOW_S, RunEndEstimates
from tests.scheduler.timeline_clusters import (
    T0,
    TimelineSimulation,
    clusters,
    end_s,
    gangs,
    limited_gang,
    machine,
    running_attempt,
    running_gangs,
    seconds,
    snapshot,
)

EXAMPLES = settings(max_examples=30, deadline=None)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[Node], list[Running], list[Gang]]:
    nodes = draw(clusters())
    return nodes, draw(running_gangs(nodes)), draw(gangs(nodes, "g", max_count=4))


@EXAMPLES
@given(scenes())
def test_promise_is_the_earliest_start_that_delays_no_earlier_promise(
    scene: tuple[list[Node], list[Running], list[Gang]],
) -> None:
    """Against looking at every point in time: what runs then, and whom it would meet, are taken away, and it
    is tried."""
    nodes, running, waiting = scene
    timeline = BackfillTimeline.of(snapshot(nodes, running))
    stays: list[tuple[float, float, Placement]] = []
    for gang in waiting:
        expected = estimate_duration(gang, {})
        promise = timeline.promise(gang, expected)
        times = sorted({0.0, *map(end_s, running), *(until for _, until, _ in stays)})
        first = next(
            at for at in times if _free(nodes, running, stays, at, expected.high_s).place(gang) is not None
        )
        assert promise is not None and abs((promise.start_at - T0).total_seconds() - first) < 0.01
        placement = timeline.promised_placement(gang.id)
        assert placement is not None
        stays.append((first, first + expected.high_s, placement))


def _free(
    nodes: list[Node],
    running: list[Running],
    stays: list[tuple[float, float, Placement]],
    at: float,
    lasts: float,
) -> Capacity:
    there = [one.placement for one in running if end_s(one) > at]
    met = [placement for begin, until, placement in stays if begin < at + lasts and at < until]
    return Capacity.of(nodes, [*there, *met])


@EXAMPLES
@given(
    clusters().flatmap(
        lambda nodes: st.tuples(
            st.just(nodes), running_gangs(nodes), gangs(nodes, "g", max_count=10, spread_s=60)
        )
    )
)
def test_promises_are_kept_despite_backfill(scene: tuple[list[Node], list[Running], list[Gang]]) -> None:
    _all_promises_are_kept(*scene)


def test_due_gang_does_not_use_capacity_promised_to_others() -> None:
    """The gang of three could start on one GPU of the first machine and two of the second, where three were
    promised to the last."""
    nodes = [machine("n0", 2), machine("n1", 4)]
    old = Placement(limited_gang("old", 2, limit_s=80), (Assignment(0, NodeId("n0"), (0, 1)),))
    small = [limited_gang(f"small{i}", limit_s=10) for i in range(3)]
    two, three = (
        limited_gang("two", 2, limit_s=30, at_s=1),
        limited_gang("wide", replicas=3, limit_s=10, at_s=1),
    )
    _all_promises_are_kept(
        nodes,
        [running_attempt(old, T0 - seconds(41))],
        [*small, two, three, limited_gang("whole", 3, limit_s=10, at_s=2)],
    )


def test_due_gang_does_not_move_to_promised_capacity() -> None:
    """The pair was promised a GPU on each of two machines; two on the second are free, but `four` counts on
    them."""
    nodes = [machine("n0", 2), machine("n1", 3), machine("n2", 1)]
    old = Placement(limited_gang("old", limit_s=50), (Assignment(0, NodeId("n2"), (0,)),))
    first, four = (
        limited_gang("first", 2, limit_s=40, at_s=30),
        limited_gang("four", 2, replicas=2, limit_s=80, at_s=32),
    )
    pair, last = (
        limited_gang("pair", replicas=2, limit_s=80, at_s=42),
        limited_gang("last", limit_s=80, at_s=44),
    )
    _all_promises_are_kept(nodes, [running_attempt(old, T0 - seconds(1))], [first, four, pair, last])


def _all_promises_are_kept(nodes: list[Node], running: list[Running], arriving: list[Gang]) -> None:
    simulation = TimelineSimulation(nodes, running={one.gang.id: one for one in running})
    arriving.sort(key=lambda gang: (gang.submitted_at, gang.id))
    while arriving or simulation.pending:
        while arriving and arriving[0].submitted_at <= simulation.now:
            simulation.pending.append(arriving.pop(0))
        simulation.run_cycle()
        _nothing_twice(simulation)
        times = [gang.submitted_at for gang in arriving[:1]] + [end for end in [simulation.next_end()] if end]
        if times:
            simulation.now = min(times)
    assert simulation.breaches == []
    for gang, promise in simulation.first_promised.items():
        assert simulation.started[gang] <= promise.start_at


def _nothing_twice(simulation: TimelineSimulation) -> None:
    used = [
        (a.node, gpu)
        for one in simulation.running.values()
        for a in one.placement.assignments
        for gpu in a.gpus
    ]
    assert len(used) == len(set(used))


@EXAMPLES
@given(scenes(), st.randoms(use_true_random=False))
def test_timeline_does_not_depend_on_input_order(
    scene: tuple[list[Node], list[Running], list[Gang]], random: Random
) -> None:
    nodes, running, waiting = scene
    mixed_nodes, mixed_running = random.sample(nodes, len(nodes)), random.sample(running, len(running))
    one, other = (
        BackfillTimeline.of(snapshot(nodes, running)),
        BackfillTimeline.of(snapshot(mixed_nodes, mixed_running)),
    )
    for gang in waiting:
        expected = estimate_duration(gang, {})
        found = one.try_backfill(gang, expected)
        assert found == other.try_backfill(gang, expected)
        if isinstance(found, Placement):
            one.start(found, expected)
            other.start(found, expected)
        else:
            assert one.promise(gang, expected) == other.promise(gang, expected)


@EXAMPLES
@given(scenes(), st.lists(st.integers(-300, 300), min_size=1, max_size=4))
def test_updated_run_end_estimates_equal_rebuilt_ones(
    scene: tuple[list[Node], list[Running], list[Gang]], steps: list[int]
) -> None:
    """Also where the clock is set back, and on again."""
    nodes, running, _ = scene
    unlimited = [
        replace(one, placement=_unlimited(one.placement)) if i % 2 else one for i, one in enumerate(running)
    ]
    durations: dict[str, tuple[float, ...]] = {}
    kept, now, there = RunEndEstimates.of(unlimited, durations, T0), T0, list(unlimited)
    for step in steps:
        now += seconds(step)
        if there and step % 3 == 0:
            gone = there.pop()
            kept.drop(gone.gang.id)
            durations = {**durations, "all": (*durations.get("all", ()), float(abs(step)))}
        kept.advance(now, durations, grace_s=PREEMPT_GRACE_S)
        fresh = RunEndEstimates.of(there, durations, now)
        assert list(kept.ends()) == list(fresh.ends())
        names = [node.id for node in nodes[:1]]
        assert kept.ends_on(names) == fresh.ends_on(names)


def _unlimited(placement: Placement) -> Placement:
    return Placement(replace(placement.gang, time_limit_s=None), placement.assignments)


@st.composite
def wishes(draw: st.DrawFn, nodes: list[Node], name: str) -> Reservation:
    start = draw(st.integers(10, 200))
    end = start + draw(st.integers(10, 100))
    every = draw(st.sampled_from([0, 0, 150, 400]))
    found = Reservation(
        ReservationId(name),
        name,
        T0 + seconds(start),
        T0 + seconds(end),
        users=("bob",),
        every_s=float(every),
        until=T0 + seconds(2000) if every else None,
    )
    if draw(st.booleans()):
        return replace(
            found,
            nodes=tuple(sorted(draw(st.sets(st.sampled_from([node.id for node in nodes]), min_size=1)))),
        )
    return replace(
        found, resources=Resources(1000, 0, draw(st.integers(1, 2))), pieces=(draw(st.integers(1, 3)),)
    )


@EXAMPLES
@given(
    clusters().flatmap(
        lambda nodes: st.tuples(st.just(nodes), st.tuples(*(wishes(nodes, f"r{i}") for i in range(4))))
    )
)
def test_admitted_reservations_fit_and_a_rejection_names_conflicts(
    scene: tuple[list[Node], tuple[Reservation, ...]],
) -> None:
    nodes, wanted = scene
    granted: list[Reservation] = []
    for wish in wanted:
        found = admit_reservation(wish, snapshot(nodes, reservations=granted))
        if isinstance(found, Admitted):
            granted.append(found.reservation)
            assert found.reservation.resources is None or sum(found.reservation.pieces) == sum(wish.pieces)
        else:
            named = [other for other in granted if f"reservation:{other.name}" in found.conflicts]
            assert len(named) == len(found.conflicts)
            alone = admit_reservation(
                wish, snapshot(nodes, reservations=[other for other in granted if other not in named])
            )
            assert isinstance(alone, Admitted) or (not named or alone.conflicts != found.conflicts)
            assert named or isinstance(admit_reservation(wish, snapshot(nodes)), Rejected)
    assert _all_at_once(nodes, granted)


def _all_at_once(nodes: list[Node], granted: list[Reservation]) -> bool:
    """Whether every node holds at every second what is reserved of it then."""
    for at in range(0, 2500, 5):
        for node in nodes:
            there = [one for one in granted if node.id in one.nodes and _holds(one, at)]
            whole = [one for one in there if one.resources is None]
            gpus = sum(
                one.pieces[one.nodes.index(node.id)] * one.resources.gpus for one in there if one.resources
            )
            if len(whole) > 1 or (whole and gpus) or gpus > len(node.gpus):
                return False
    return True


def _holds(one: Reservation, at: float) -> bool:
    first, length = (one.start_at - T0).total_seconds(), (one.end_at - one.start_at).total_seconds()
    starts = [first]
    while one.every_s and one.until and T0 + seconds(starts[-1] + one.every_s) < one.until:
        starts.append(starts[-1] + one.every_s)
    return any(start <= at < start + length for start in starts)


@EXAMPLES
@given(
    clusters().flatmap(
        lambda nodes: st.tuples(
            st.just(nodes),
            running_gangs(nodes),
            gangs(nodes, "g", max_count=8, spread_s=100),
            st.tuples(*(wishes(nodes, f"r{i}") for i in range(3))),
        )
    )
)
def test_admitted_reservations_are_honoured(
    scene: tuple[list[Node], list[Running], list[Gang], tuple[Reservation, ...]],
) -> None:
    """When they begin, what is reserved is free of all others, and stays so until they end."""
    nodes, running, arriving, wanted = scene
    running = [one for one in running if one.gang.user != "bob"]
    booked: list[Reservation] = []
    for wish in wanted:
        found = admit_reservation(
            replace(wish, every_s=0.0, until=None), snapshot(nodes, running, reservations=booked)
        )
        booked += [found.reservation] if isinstance(found, Admitted) else []
    simulation = TimelineSimulation(
        nodes, running={one.gang.id: one for one in running}, reservations=tuple(booked)
    )
    arriving = sorted(
        (replace(gang, user="ada", preemptible=False) for gang in arriving),
        key=lambda gang: (gang.submitted_at, gang.id),
    )
    changes = [at for one in booked for at in (one.start_at, one.end_at)]
    while booked and simulation.now < max(changes):
        while arriving and arriving[0].submitted_at <= simulation.now:
            simulation.pending.append(arriving.pop(0))
        simulation.run_cycle()
        simulation.running = {
            name: one for name, one in simulation.running.items() if simulation.ends_at(one) > simulation.now
        }
        assert _is_free(
            nodes,
            list(simulation.running.values()),
            [one for one in booked if one.start_at <= simulation.now < one.end_at],
        )
        times = [*(gang.submitted_at for gang in arriving[:1]), *changes]
        times += [at] if (at := simulation.next_end()) else []
        simulation.now = min(at for at in times if at > simulation.now)


def _is_free(nodes: list[Node], running: list[Running], booked: list[Reservation]) -> bool:
    """Whether all that is reserved is free at once."""
    capacity = Capacity.of(nodes, (one.placement for one in running))
    for one in booked:
        if one.resources is None:
            if any(a.node in one.nodes for run in running for a in run.placement.assignments):
                return False
            continue
        for name, pieces in zip(one.nodes, one.pieces, strict=True):
            found = capacity.subset([name]).place(limited_gang("owner", one.resources.gpus, replicas=pieces))
            if found is None:
                return False
            capacity.allocate(found)
    return True


@EXAMPLES
@given(scenes())
def test_backfill_attempt_changes_no_state(scene: tuple[list[Node], list[Running], list[Gang]]) -> None:
    nodes, running, waiting = scene
    timeline = BackfillTimeline.of(snapshot(nodes, running))
    for gang in waiting:
        expected = DurationEstimate(1.0, 1.0, 1.0, is_limit=True)
        first = timeline.try_backfill(gang, expected)
        timeline.promise(gang, expected)
        timeline.withdraw_promise(gang.id)
        assert timeline.try_backfill(gang, expected) == first


@EXAMPLES
@given(scenes(), st.lists(st.integers(0, 130), min_size=1, max_size=5))
def test_updated_release_schedule_equals_the_run_ends(
    scene: tuple[list[Node], list[Running], list[Gang]], steps: list[int]
) -> None:
    """The arrays say the same as the ends one by one."""
    nodes, running, _ = scene
    _kept_up(
        nodes,
        [
            replace(one, placement=_unlimited(one.placement)) if i % 2 else one
            for i, one in enumerate(running)
        ],
        steps,
    )


def test_updated_release_schedule_of_equal_runs_equals_the_run_ends() -> None:
    """Their ends are worked out together."""
    nodes = [machine(f"n{i:02}", 4) for i in range(20)]
    placed = [
        Placement(limited_gang(f"r{i:02}"), (Assignment(0, nodes[i % 20].id, (i // 20,)),)) for i in range(40)
    ]
    _kept_up(
        nodes,
        [running_attempt(_unlimited(one), T0 - seconds(i)) for i, one in enumerate(placed)],
        [3, 16, 8, 7, 40, 11, 100, 4, 2],
    )


def _kept_up(nodes: list[Node], running: list[Running], steps: list[int]) -> None:
    there = list(running)
    durations: dict[str, tuple[float, ...]] = {"all": (20.0, 40.0, 60.0, 200.0)}
    kept, now = RunEndEstimates.of(there, durations, T0), T0
    names = tuple(node.id for node in nodes)
    for step in steps:
        now += seconds(step)
        if there and step % 4 == 0:
            kept.drop(there.pop().gang.id)
            durations = {**durations, "all": (*durations["all"], float(step))}
        elif there and step % 4 == 1:
            there[0] = replace(there[0], stopping=not there[0].stopping)
            kept.add(there[0])
        elif step % 4 == 2 and len(there) < len(running):
            there.append(running[len(there)])
            kept.add(there[-1])
        kept.advance(now, durations, grace_s=PREEMPT_GRACE_S)
        found = kept.releases(names)
        told = {name: _released(found, index, now) for index, name in enumerate(names)}
        each: dict[NodeId, list[tuple[float, int]]] = {name: [] for name in names}
        for end in RunEndEstimates.of(there, durations, now).ends():
            for assignment in end.placement.assignments:
                each[assignment.node].append((round(end.mid_s, 3), 1000 * len(assignment.gpus)))
        assert told == each


def _released(releases: ReleaseSchedule, node: int, now: datetime) -> list[tuple[float, int]]:
    """In how many seconds how many thousandths of GPUs come back to a node, one after another."""
    entries = np.flatnonzero((releases.node == node) & np.isfinite(releases.times))
    at_s = np.maximum(releases.times[entries] - now.timestamp(), OVERDUE_WINDOW_S)
    return [
        (round(time_s, 3), gpu)
        for time_s, gpu in zip(
            at_s.tolist(), np.diff(releases.released[2, entries], prepend=0).tolist(), strict=True
        )
    ]


@EXAMPLES
@given(scenes(), st.integers(0, 3))
def test_node_is_feasible_once_enough_is_released(
    scene: tuple[list[Node], list[Running], list[Gang]], begun: int
) -> None:
    """Whether that was there before this turn or was started in it."""
    nodes, running, waiting = scene
    future, started = (
        RunEndEstimates.of(running[begun:], {}, T0),
        RunEndEstimates.of(running[:begun], {}, T0).ends(),
    )
    capacity = Capacity.of(nodes, (one.placement for one in running))
    returns = EarliestFitIndex.of(capacity, future, started)
    for gang in waiting:
        fit_s = np.full(len(capacity.ids), inf)
        left = np.array(capacity.free_totals())
        for end in (None, *sorted([*future.ends(), *started], key=lambda end: end.mid_s)):
            if end is not None:
                for (_, role), assignment in zip(
                    end.placement.gang.replica_roles(), end.placement.assignments, strict=True
                ):
                    asked = role.resources
                    back = asked.cpu_milli, asked.memory_bytes, len(assignment.gpus) * assignment.gpu_milli
                    left[:, capacity.rows_of([assignment.node])] += np.array(back)[:, None]
            for role in gang.roles:
                asked = role.resources
                enough = (
                    left >= np.array([[asked.cpu_milli], [asked.memory_bytes], [min_gpu_milli(asked)]])
                ).all(axis=0)
                fit_s[enough & capacity.allowed_nodes(role.where) & np.isinf(fit_s)] = (
                    0.0 if end is None else end.mid_s
                )
        assert returns.earliest_s(gang).tolist() == pytest.approx(fit_s.tolist())
        near, beyond_s = returns.earliest_nodes(gang, 1, ())
        assert {*near} >= {
            node for node, at_s in zip(capacity.ids, fit_s.tolist(), strict=True) if at_s < beyond_s - 0.001
        }
        assert all(fit_s[capacity.rows_of([node])[0]] <= beyond_s + 0.001 for node in near)

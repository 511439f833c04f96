"""Laws of every timeline, on small generated clusters whose runs take exactly as long as their limit."""

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
def scenarios(draw: st.DrawFn) -> tuple[list[Node], list[Running], list[Gang]]:
    nodes = draw(clusters())
    return nodes, draw(running_gangs(nodes)), draw(gangs(nodes, "g", max_count=4))


@EXAMPLES
@given(scenarios())
def test_promise_is_the_earliest_start_that_delays_no_earlier_promise(
    scenario: tuple[list[Node], list[Running], list[Gang]],
) -> None:
    """Compared with a search over all times: running and overlapping gangs are subtracted, then the placement
    is tried."""
    nodes, running, waiting = scenario
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
    placements = [run.placement for run in running if end_s(run) > at]
    met = [placement for begin, until, placement in stays if begin < at + lasts and at < until]
    return Capacity.of(nodes, [*placements, *met])


@EXAMPLES
@given(
    clusters().flatmap(
        lambda nodes: st.tuples(
            st.just(nodes), running_gangs(nodes), gangs(nodes, "g", max_count=10, spread_s=60)
        )
    )
)
def test_promises_are_kept_despite_backfill(scenario: tuple[list[Node], list[Running], list[Gang]]) -> None:
    _check_promises(*scenario)


def test_due_gang_does_not_use_capacity_promised_to_others() -> None:
    """The gang of three could start on one GPU of the first node and two of the second, of which three are
    promised to the last gang."""
    nodes = [machine("n0", 2), machine("n1", 4)]
    old = Placement(limited_gang("old", 2, limit_s=80), (Assignment(0, NodeId("n0"), (0, 1)),))
    small = [limited_gang(f"small{i}", limit_s=10) for i in range(3)]
    two, three = (
        limited_gang("two", 2, limit_s=30, at_s=1),
        limited_gang("wide", replicas=3, limit_s=10, at_s=1),
    )
    _check_promises(
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
    _check_promises(nodes, [running_attempt(old, T0 - seconds(1))], [first, four, pair, last])


def _check_promises(nodes: list[Node], running: list[Running], arriving: list[Gang]) -> None:
    simulation = TimelineSimulation(nodes, running={run.gang.id: run for run in running})
    arriving.sort(key=lambda gang: (gang.submitted_at, gang.id))
    while arriving or simulation.pending:
        while arriving and arriving[0].submitted_at <= simulation.now:
            simulation.pending.append(arriving.pop(0))
        simulation.run_cycle()
        _check_no_overcommitment(simulation)
        times = [gang.submitted_at for gang in arriving[:1]] + [end for end in [simulation.next_end()] if end]
        if times:
            simulation.now = min(times)
    assert simulation.breaches == []
    for gang, promise in simulation.first_promised.items():
        assert simulation.started[gang] <= promise.start_at


def _check_no_overcommitment(simulation: TimelineSimulation) -> None:
    used = [
        (a.node, gpu)
        for run in simulation.running.values()
        for a in run.placement.assignments
        for gpu in a.gpus
    ]
    assert len(used) == len(set(used))


@EXAMPLES
@given(scenarios(), st.randoms(use_true_random=False))
def test_timeline_does_not_depend_on_input_order(
    scenario: tuple[list[Node], list[Running], list[Gang]], random: Random
) -> None:
    nodes, running, waiting = scenario
    mixed_nodes, mixed_running = random.sample(nodes, len(nodes)), random.sample(running, len(running))
    one, other = (
        BackfillTimeline.of(snapshot(nodes, running)),
        BackfillTimeline.of(snapshot(mixed_nodes, mixed_running)),
    )
    for gang in waiting:
        expected = estimate_duration(gang, {})
        result = one.try_backfill(gang, expected)
        assert result == other.try_backfill(gang, expected)
        if isinstance(result, Placement):
            one.start(result, expected)
            other.start(result, expected)
        else:
            assert one.promise(gang, expected) == other.promise(gang, expected)


@EXAMPLES
@given(scenarios(), st.lists(st.integers(-300, 300), min_size=1, max_size=4))
def test_updated_run_end_estimates_equal_rebuilt_ones(
    scenario: tuple[list[Node], list[Running], list[Gang]], steps: list[int]
) -> None:
    """Also where the clock is set back, and on again."""
    nodes, running, _ = scenario
    unlimited = [
        replace(one, placement=_unlimited(one.placement)) if i % 2 else one for i, one in enumerate(running)
    ]
    durations: dict[str, tuple[float, ...]] = {}
    updated, now, current = RunEndEstimates.of(unlimited, durations, T0), T0, list(unlimited)
    for step in steps:
        now += seconds(step)
        if current and step % 3 == 0:
            ended = current.pop()
            updated.drop(ended.gang.id)
            durations = {**durations, "all": (*durations.get("all", ()), float(abs(step)))}
        updated.advance(now, durations, grace_s=PREEMPT_GRACE_S)
        fresh = RunEndEstimates.of(current, durations, now)
        assert list(updated.ends()) == list(fresh.ends())
        names = [node.id for node in nodes[:1]]
        assert updated.ends_on(names) == fresh.ends_on(names)


def _unlimited(placement: Placement) -> Placement:
    return Placement(replace(placement.gang, time_limit_s=None), placement.assignments)


@st.composite
def reservation_requests(draw: st.DrawFn, nodes: list[Node], name: str) -> Reservation:
    start = draw(st.integers(10, 200))
    end = start + draw(st.integers(10, 100))
    every = draw(st.sampled_from([0, 0, 150, 400]))
    result = Reservation(
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
            result,
            nodes=tuple(sorted(draw(st.sets(st.sampled_from([node.id for node in nodes]), min_size=1)))),
        )
    return replace(
        result, resources=Resources(1000, 0, draw(st.integers(1, 2))), pieces=(draw(st.integers(1, 3)),)
    )


@EXAMPLES
@given(
    clusters().flatmap(
        lambda nodes: st.tuples(
            st.just(nodes), st.tuples(*(reservation_requests(nodes, f"r{i}") for i in range(4)))
        )
    )
)
def test_admitted_reservations_fit_and_a_rejection_names_conflicts(
    scenario: tuple[list[Node], tuple[Reservation, ...]],
) -> None:
    nodes, requests = scenario
    granted: list[Reservation] = []
    for request in requests:
        admission = admit_reservation(request, snapshot(nodes, reservations=granted))
        if isinstance(admission, Admitted):
            granted.append(admission.reservation)
            assert admission.reservation.resources is None or sum(admission.reservation.pieces) == sum(
                request.pieces
            )
        else:
            named = [other for other in granted if f"reservation:{other.name}" in admission.conflicts]
            assert len(named) == len(admission.conflicts)
            alone = admit_reservation(
                request, snapshot(nodes, reservations=[other for other in granted if other not in named])
            )
            assert isinstance(alone, Admitted) or (not named or alone.conflicts != admission.conflicts)
            assert named or isinstance(admit_reservation(request, snapshot(nodes)), Rejected)
    assert _fit_together(nodes, granted)


def _fit_together(nodes: list[Node], granted: list[Reservation]) -> bool:
    """Whether every node has, at every second, the capacity that is reserved on it."""
    for at in range(0, 2500, 5):
        for node in nodes:
            on_node = [
                reservation
                for reservation in granted
                if node.id in reservation.nodes and _is_active(reservation, at)
            ]
            complete = [reservation for reservation in on_node if reservation.resources is None]
            gpus = sum(
                reservation.pieces[reservation.nodes.index(node.id)] * reservation.resources.gpus
                for reservation in on_node
                if reservation.resources
            )
            if len(complete) > 1 or (complete and gpus) or gpus > len(node.gpus):
                return False
    return True


def _is_active(reservation: Reservation, at: float) -> bool:
    first, length = (
        (reservation.start_at - T0).total_seconds(),
        (reservation.end_at - reservation.start_at).total_seconds(),
    )
    starts = [first]
    while (
        reservation.every_s
        and reservation.until
        and T0 + seconds(starts[-1] + reservation.every_s) < reservation.until
    ):
        starts.append(starts[-1] + reservation.every_s)
    return any(start <= at < start + length for start in starts)


@EXAMPLES
@given(
    clusters().flatmap(
        lambda nodes: st.tuples(
            st.just(nodes),
            running_gangs(nodes),
            gangs(nodes, "g", max_count=8, spread_s=100),
            st.tuples(*(reservation_requests(nodes, f"r{i}") for i in range(3))),
        )
    )
)
def test_admitted_reservations_are_honoured(
    scenario: tuple[list[Node], list[Running], list[Gang], tuple[Reservation, ...]],
) -> None:
    """Reserved capacity is free of other users from the start of a reservation to its end."""
    nodes, running, arriving, requests = scenario
    running = [run for run in running if run.gang.user != "bob"]
    admitted: list[Reservation] = []
    for request in requests:
        admission = admit_reservation(
            replace(request, every_s=0.0, until=None), snapshot(nodes, running, reservations=admitted)
        )
        admitted += [admission.reservation] if isinstance(admission, Admitted) else []
    simulation = TimelineSimulation(
        nodes, running={run.gang.id: run for run in running}, reservations=tuple(admitted)
    )
    arriving = sorted(
        (replace(gang, user="ada", preemptible=False) for gang in arriving),
        key=lambda gang: (gang.submitted_at, gang.id),
    )
    changes = [at for reservation in admitted for at in (reservation.start_at, reservation.end_at)]
    while admitted and simulation.now < max(changes):
        while arriving and arriving[0].submitted_at <= simulation.now:
            simulation.pending.append(arriving.pop(0))
        simulation.run_cycle()
        simulation.running = {
            name: one for name, one in simulation.running.items() if simulation.ends_at(one) > simulation.now
        }
        assert _is_free(
            nodes,
            list(simulation.running.values()),
            [
                reservation
                for reservation in admitted
                if reservation.start_at <= simulation.now < reservation.end_at
            ],
        )
        times = [*(gang.submitted_at for gang in arriving[:1]), *changes]
        times += [at] if (at := simulation.next_end()) else []
        simulation.now = min(at for at in times if at > simulation.now)


def _is_free(nodes: list[Node], running: list[Running], booked: list[Reservation]) -> bool:
    """Whether all reserved capacity is free at the same time."""
    capacity = Capacity.of(nodes, (run.placement for run in running))
    for reservation in booked:
        if reservation.resources is None:
            if any(a.node in reservation.nodes for run in running for a in run.placement.assignments):
                return False
            continue
        for name, pieces in zip(reservation.nodes, reservation.pieces, strict=True):
            result = capacity.subset([name]).place(
                limited_gang("owner", reservation.resources.gpus, replicas=pieces)
            )
            if result is None:
                return False
            capacity.allocate(result)
    return True


@EXAMPLES
@given(scenarios())
def test_backfill_attempt_changes_no_state(scenario: tuple[list[Node], list[Running], list[Gang]]) -> None:
    nodes, running, waiting = scenario
    timeline = BackfillTimeline.of(snapshot(nodes, running))
    for gang in waiting:
        expected = DurationEstimate(1.0, 1.0, 1.0, is_limit=True)
        first = timeline.try_backfill(gang, expected)
        timeline.promise(gang, expected)
        timeline.withdraw_promise(gang.id)
        assert timeline.try_backfill(gang, expected) == first


@EXAMPLES
@given(scenarios(), st.lists(st.integers(0, 130), min_size=1, max_size=5))
def test_updated_release_schedule_equals_the_run_ends(
    scenario: tuple[list[Node], list[Running], list[Gang]], steps: list[int]
) -> None:
    """The arrays equal the individual run ends."""
    nodes, running, _ = scenario
    _check_updates(
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
    _check_updates(
        nodes,
        [running_attempt(_unlimited(one), T0 - seconds(i)) for i, one in enumerate(placed)],
        [3, 16, 8, 7, 40, 11, 100, 4, 2],
    )


def _check_updates(nodes: list[Node], running: list[Running], steps: list[int]) -> None:
    current = list(running)
    durations: dict[str, tuple[float, ...]] = {"all": (20.0, 40.0, 60.0, 200.0)}
    updated, now = RunEndEstimates.of(current, durations, T0), T0
    names = tuple(node.id for node in nodes)
    for step in steps:
        now += seconds(step)
        if current and step % 4 == 0:
            updated.drop(current.pop().gang.id)
            durations = {**durations, "all": (*durations["all"], float(step))}
        elif current and step % 4 == 1:
            current[0] = replace(current[0], stopping=not current[0].stopping)
            updated.add(current[0])
        elif step % 4 == 2 and len(current) < len(running):
            current.append(running[len(current)])
            updated.add(current[-1])
        updated.advance(now, durations, grace_s=PREEMPT_GRACE_S)
        releases = updated.releases(names)
        result = {name: _release_amounts(releases, index, now) for index, name in enumerate(names)}
        each: dict[NodeId, list[tuple[float, int]]] = {name: [] for name in names}
        for end in RunEndEstimates.of(current, durations, now).ends():
            for assignment in end.placement.assignments:
                each[assignment.node].append((round(end.mid_s, 3), 1000 * len(assignment.gpus)))
        assert result == each


def _release_amounts(releases: ReleaseSchedule, node: int, now: datetime) -> list[tuple[float, int]]:
    """Returns the releases of a node in order: in how many seconds, and how many thousandths of GPUs."""
    entries = np.flatnonzero((releases.node == node) & np.isfinite(releases.times))
    at_s = np.maximum(releases.times[entries] - now.timestamp(), OVERDUE_WINDOW_S)
    return [
        (round(time_s, 3), gpu)
        for time_s, gpu in zip(
            at_s.tolist(), np.diff(releases.released[2, entries], prepend=0).tolist(), strict=True
        )
    ]


@EXAMPLES
@given(scenarios(), st.integers(0, 3))
def test_node_is_feasible_once_enough_is_released(
    scenario: tuple[list[Node], list[Running], list[Gang]], started_count: int
) -> None:
    """Both for runs from before this cycle and for runs started in it."""
    nodes, running, waiting = scenario
    run_ends, started = (
        RunEndEstimates.of(running[started_count:], {}, T0),
        RunEndEstimates.of(running[:started_count], {}, T0).ends(),
    )
    capacity = Capacity.of(nodes, (run.placement for run in running))
    returns = EarliestFitIndex.of(capacity, run_ends, started)
    for gang in waiting:
        fit_s = np.full(len(capacity.ids), inf)
        free = np.array(capacity.free_totals())
        for end in (None, *sorted([*run_ends.ends(), *started], key=lambda end: end.mid_s)):
            if end is not None:
                for (_, role), assignment in zip(
                    end.placement.gang.replica_roles(), end.placement.assignments, strict=True
                ):
                    requested = role.resources
                    back = (
                        requested.cpu_milli,
                        requested.memory_bytes,
                        len(assignment.gpus) * assignment.gpu_milli,
                    )
                    free[:, capacity.rows_of([assignment.node])] += np.array(back)[:, None]
            for role in gang.roles:
                requested = role.resources
                enough = (
                    free
                    >= np.array([[requested.cpu_milli], [requested.memory_bytes], [min_gpu_milli(requested)]])
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

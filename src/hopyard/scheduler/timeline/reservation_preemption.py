"""Finds the runs to preempt for a reservation that begins soon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf

from hopyard.domain.cluster import Node, Preemption, Running
from hopyard.domain.ids import GangId, NodeId
from hopyard.domain.preemption_causes import ReservationPreemption
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.timeline.reservation_windows import (
    PREEMPTION_MARGIN_S,
    ReservationWindow,
    may_use,
    windows,
)
from hopyard.scheduler.timeline.reserved_capacity import reserved_on
from hopyard.scheduler.timeline.run_end_estimates import RunEndEstimates

RECHECK_INTERVAL_S = 15.0


@dataclass(frozen=True, slots=True)
class ReservationPreemptions:
    """preemptions: runs to preempt now. recheck_at: the time of the next preemption, begin or end of a
    reservation; None without reservations."""

    preemptions: tuple[Preemption, ...] = ()
    recheck_at: datetime | None = None


def preempt_for_reservations(
    reservations: Sequence[Reservation],
    run_ends: RunEndEstimates,
    nodes: Mapping[NodeId, Node],
    queues: QueueTree,
    now: datetime,
    *,
    grace_s: float,
) -> ReservationPreemptions:
    """Returns the fewest runs to preempt so that there is room when a reservation begins: preemptible runs of
    other owners that may still run then.

    grace_s: seconds that a run may take to stop: it is asked this much and PREEMPTION_MARGIN_S before the
    begin. Runs that are not preemptible stay; a reservation that would certainly meet them was not granted.
    No run is preempted on a node where the owner could start nothing either, since it is cordoned or not
    ready.
    """
    found: dict[GangId, Preemption] = {}
    looks: list[datetime] = []
    notice_s = grace_s + PREEMPTION_MARGIN_S
    booked = windows(reservations, now)
    for count, booking in enumerate(booked):
        turns = (booking.from_s - notice_s, booking.from_s, booking.until_s)
        looks += [now + timedelta(seconds=at_s) for at_s in turns if 0 < at_s < inf]
        if booking.from_s <= notice_s:
            looks += [now + timedelta(seconds=at_s) for at_s in _late_end_checks(booking, run_ends, queues)]
            before = [one.reservation for one in booked[:count] if one.until_s > max(booking.from_s, 0.0)]
            for running in _runs_to_preempt(booking, before, run_ends, nodes, queues, now, frozenset(found)):
                cause = ReservationPreemption(booking.reservation.name, booking.from_s)
                found[running.gang.id] = Preemption(running.attempt, running.gang.id, GangId(""), cause)
    return ReservationPreemptions(tuple(found.values()), min(looks, default=None))


def _late_end_checks(window: ReservationWindow, run_ends: RunEndEstimates, queues: QueueTree) -> list[float]:
    """Returns the seconds until checks whether runs have ended that were expected to end before the
    reservation begins."""
    ends = [
        (end.high_s, run_ends.running(end.gang))
        for end in run_ends.ends_on(window.reservation.nodes)
        if end.high_s <= window.from_s
    ]
    can_go = [
        (at_s, one.gang)
        for at_s, one in ends
        if one is not None and not one.stopping and one.gang.preemptible
    ]
    return [
        max(at_s + 1.0, RECHECK_INTERVAL_S)
        for at_s, gang in can_go
        if not may_use(gang, window.reservation, queues)
    ]


def _runs_to_preempt(
    window: ReservationWindow,
    earlier: Sequence[Reservation],
    run_ends: RunEndEstimates,
    nodes: Mapping[NodeId, Node],
    queues: QueueTree,
    now: datetime,
    preempted: frozenset[GangId],
) -> Iterable[Running]:
    """earlier: reservations that are already active when this one begins."""
    reservation, chosen = window.reservation, set(preempted)
    for node in reservation.nodes:
        if node in nodes and not nodes[node].schedulable:
            continue
        there = [
            run_ends.running(end.gang)
            for end in run_ends.ends_on([node])
            if end.high_s > max(window.from_s, 0.0)
        ]
        running = [one for one in there if one is not None]
        owners = [one for one in running if may_use(one.gang, reservation, queues)]
        others = [one for one in running if one not in owners]
        leaving = [one for one in others if one.stopping or one.gang.id in chosen]
        can_go = sorted(
            (one for one in others if one not in leaving and one.gang.preemptible),
            key=lambda one: _unsaved_work(one, now),
        )
        if reservation.resources is not None:
            kept = [one for one in running if one not in leaving]
            can_go = (
                _minimum_victims(nodes[node], [*earlier, reservation], kept, can_go, queues)
                if node in nodes
                else []
            )
        for one in can_go:
            chosen.add(one.gang.id)
            yield one


def _minimum_victims(
    node: Node,
    reservations: Sequence[Reservation],
    present: Sequence[Running],
    preemptible: Sequence[Running],
    queues: QueueTree,
) -> list[Running]:
    """Returns the first and fewest of the preemptible runs whose end releases the unused pieces of the last
    reservation's owner, beside what the other reservations keep. If all of them together release too little,
    returns the fewest that release as much: no run ends in vain."""

    def missing(gone: Sequence[Running]) -> tuple[int, ...]:
        placements = [one.placement for one in present if one not in gone]
        free = Capacity.of([node], placements)
        short: tuple[int, ...] = ()
        for rest in reserved_on(node, reservations, placements, queues):
            short = free.withhold(node.id, rest)
        return short

    least = missing(preemptible)
    needed = [*preemptible] if least != missing(()) else []
    for one in reversed(needed):
        others = [other for other in needed if other is not one]
        needed = others if missing(others) == least else needed
    return needed


def _unsaved_work(running: Running, now: datetime) -> tuple[float, GangId]:
    """Returns the GPU-seconds, or seconds for a run without GPUs, since the last checkpoint."""
    since = running.saved_at or running.started_at or now
    gpus = sum(len(assignment.gpus) for assignment in running.placement.assignments)
    return max((now - since).total_seconds(), 0.0) * max(gpus, 1), running.gang.id

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
    preemptions: dict[GangId, Preemption] = {}
    recheck_times: list[datetime] = []
    notice_s = grace_s + PREEMPTION_MARGIN_S
    all_windows = windows(reservations, now)
    for count, window in enumerate(all_windows):
        times = (window.from_s - notice_s, window.from_s, window.until_s)
        recheck_times += [now + timedelta(seconds=at_s) for at_s in times if 0 < at_s < inf]
        if window.from_s <= notice_s:
            recheck_times += [
                now + timedelta(seconds=at_s) for at_s in _late_end_checks(window, run_ends, queues)
            ]
            earlier = [
                other.reservation for other in all_windows[:count] if other.until_s > max(window.from_s, 0.0)
            ]
            for running in _runs_to_preempt(
                window, earlier, run_ends, nodes, queues, now, frozenset(preemptions)
            ):
                cause = ReservationPreemption(window.reservation.name, window.from_s)
                preemptions[running.gang.id] = Preemption(running.attempt, running.gang.id, GangId(""), cause)
    return ReservationPreemptions(tuple(preemptions.values()), min(recheck_times, default=None))


def _late_end_checks(window: ReservationWindow, run_ends: RunEndEstimates, queues: QueueTree) -> list[float]:
    """Returns the seconds until checks whether runs have ended that were expected to end before the
    reservation begins."""
    ends = [
        (end.high_s, run_ends.running(end.gang))
        for end in run_ends.ends_on(window.reservation.nodes)
        if end.high_s <= window.from_s
    ]
    preemptible = [
        (at_s, run.gang)
        for at_s, run in ends
        if run is not None and not run.stopping and run.gang.preemptible
    ]
    return [
        max(at_s + 1.0, RECHECK_INTERVAL_S)
        for at_s, gang in preemptible
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
        occupants = [
            run_ends.running(end.gang)
            for end in run_ends.ends_on([node])
            if end.high_s > max(window.from_s, 0.0)
        ]
        running = [run for run in occupants if run is not None]
        owners = [run for run in running if may_use(run.gang, reservation, queues)]
        others = [run for run in running if run not in owners]
        stopping = [run for run in others if run.stopping or run.gang.id in chosen]
        candidates = sorted(
            (run for run in others if run not in stopping and run.gang.preemptible),
            key=lambda run: _unsaved_work(run, now),
        )
        if reservation.resources is not None:
            present = [run for run in running if run not in stopping]
            candidates = (
                _minimum_victims(nodes[node], [*earlier, reservation], present, candidates, queues)
                if node in nodes
                else []
            )
        for run in candidates:
            chosen.add(run.gang.id)
            yield run


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

    def missing(ended: Sequence[Running]) -> tuple[int, ...]:
        placements = [run.placement for run in present if run not in ended]
        free = Capacity.of([node], placements)
        shortfall: tuple[int, ...] = ()
        for holdback in reserved_on(node, reservations, placements, queues):
            shortfall = free.withhold(node.id, holdback)
        return shortfall

    minimum = missing(preemptible)
    victims = [*preemptible] if minimum != missing(()) else []
    for run in reversed(victims):
        others = [other for other in victims if other is not run]
        victims = others if missing(others) == minimum else victims
    return victims


def _unsaved_work(running: Running, now: datetime) -> tuple[float, GangId]:
    """Returns the GPU-seconds, or seconds for a run without GPUs, since the last checkpoint."""
    since = running.saved_at or running.started_at or now
    gpus = sum(len(assignment.gpus) for assignment in running.placement.assignments)
    return max((now - since).total_seconds(), 0.0) * max(gpus, 1), running.gang.id

"""Who stands in the way of a reservation that begins soon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf

from hopyard.domain.cluster import Node, Preemption, Running
from hopyard.domain.ids import GangId, NodeId
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.spans import soon
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.timeline.booked import SPARE_S, Booking, bookings, owns
from hopyard.scheduler.timeline.future import Future
from hopyard.scheduler.timeline.held import kept_on

LOOK_EVERY_S = 15.0


@dataclass(frozen=True, slots=True)
class Leave:
    """ask: runs to ask now. look_again_at: when the next must be asked or a reservation begins or ends; None
    where nothing is reserved."""

    ask: tuple[Preemption, ...] = ()
    look_again_at: datetime | None = None


def leave(
    reservations: Sequence[Reservation],
    future: Future,
    nodes: Mapping[NodeId, Node],
    queues: QueueTree,
    now: datetime,
    *,
    grace_s: float,
) -> Leave:
    """Runs that are not the owner's, may be preempted, and might still be there when it begins, as few as
    make the room.

    grace_s: seconds that they may take to leave: they are asked so much before it begins, and SPARE_S more.
    Those that may not be preempted stay; a reservation that would have met them for certain was not granted.
    Nobody leaves a node on which the owner could start nothing either: one that is cordoned, or away.
    """
    found: dict[GangId, Preemption] = {}
    looks: list[datetime] = []
    notice_s = grace_s + SPARE_S
    booked = bookings(reservations, now)
    for count, booking in enumerate(booked):
        turns = (booking.from_s - notice_s, booking.from_s, booking.until_s)
        looks += [now + timedelta(seconds=at_s) for at_s in turns if 0 < at_s < inf]
        if booking.from_s <= notice_s:
            looks += [now + timedelta(seconds=at_s) for at_s in _may_be_late(booking, future, queues)]
            before = [one.reservation for one in booked[:count] if one.until_s > max(booking.from_s, 0.0)]
            for running in _in_way(booking, before, future, nodes, queues, now, frozenset(found)):
                when = "has begun" if booking.from_s <= 0 else f"begins {soon(booking.from_s)}"
                reason = f"reservation {booking.reservation.name}, which {when}, needs what it uses"
                found[running.gang.id] = Preemption(running.attempt, running.gang.id, GangId(""), reason)
    return Leave(tuple(found.values()), min(looks, default=None))


def _may_be_late(booking: Booking, future: Future, queues: QueueTree) -> list[float]:
    """When it is seen whether those are gone that are expected to be gone when it begins, in seconds."""
    ends = [
        (end.high_s, future.running(end.gang))
        for end in future.ends_on(booking.reservation.nodes)
        if end.high_s <= booking.from_s
    ]
    can_go = [
        (at_s, one.gang)
        for at_s, one in ends
        if one is not None and not one.stopping and one.gang.preemptible
    ]
    return [
        max(at_s + 1.0, LOOK_EVERY_S) for at_s, gang in can_go if not owns(gang, booking.reservation, queues)
    ]


def _in_way(
    booking: Booking,
    before: Sequence[Reservation],
    future: Future,
    nodes: Mapping[NodeId, Node],
    queues: QueueTree,
    now: datetime,
    asked: frozenset[GangId],
) -> Iterable[Running]:
    """before: reservations that hold already when it begins."""
    reservation, chosen = booking.reservation, set(asked)
    for node in reservation.nodes:
        if node in nodes and not nodes[node].open:
            continue
        there = [
            future.running(end.gang)
            for end in future.ends_on([node])
            if end.high_s > max(booking.from_s, 0.0)
        ]
        running = [one for one in there if one is not None]
        owners = [one for one in running if owns(one.gang, reservation, queues)]
        others = [one for one in running if one not in owners]
        leaving = [one for one in others if one.stopping or one.gang.id in chosen]
        can_go = sorted(
            (one for one in others if one not in leaving and one.gang.preemptible),
            key=lambda one: _lost(one, now),
        )
        if reservation.resources is not None:
            kept = [one for one in running if one not in leaving]
            can_go = (
                _fewest(nodes[node], [*before, reservation], kept, can_go, queues) if node in nodes else []
            )
        for one in can_go:
            chosen.add(one.gang.id)
            yield one


def _fewest(
    node: Node,
    reservations: Sequence[Reservation],
    there: Sequence[Running],
    can_go: Sequence[Running],
    queues: QueueTree,
) -> list[Running]:
    """The first of those that can go, as few as leave what the owner of the last reservation does not use yet
    of its pieces, beside what the others keep; or as much of it as there is without all of them: nobody
    leaves in vain."""

    def missing(gone: Sequence[Running]) -> tuple[int, ...]:
        placements = [one.placement for one in there if one not in gone]
        free = Capacity.of([node], placements)
        short: tuple[int, ...] = ()
        for rest in kept_on(node, reservations, placements, queues):
            short = free.hold_back(node.id, rest)
        return short

    least = missing(can_go)
    needed = [*can_go] if least != missing(()) else []
    for one in reversed(needed):
        others = [other for other in needed if other is not one]
        needed = others if missing(others) == least else needed
    return needed


def _lost(running: Running, now: datetime) -> tuple[float, GangId]:
    """GPU-seconds, or seconds where it has no GPU, since its last checkpoint."""
    since = running.saved_at or running.started_at or now
    gpus = sum(len(assignment.gpus) for assignment in running.placement.assignments)
    return max((now - since).total_seconds(), 0.0) * max(gpus, 1), running.gang.id

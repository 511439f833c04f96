"""Occurrences of reservations: their times, nodes and owners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from math import inf
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from hopyard.domain.gang import Gang
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation

DAY_S = 86400.0
PLANNING_HORIZON_S = 14 * 86400.0  # how far ahead a plan looks
# runs are asked to leave so much earlier than they must to be gone when it begins, even if they are killed
PREEMPTION_MARGIN_S = 120.0
MAX_OCCURRENCES = 16  # times that one reservation comes up which a plan looks at


@dataclass(frozen=True, slots=True)
class ReservationWindow:
    """One time that a reservation comes up, in seconds from now; `from_s` <= 0 where it has begun. Or all
    those times together that come after those a plan looks at, as if it held from then on for good, until_s
    is infinite: nobody is promised a gap that far ahead."""

    reservation: Reservation
    from_s: float
    until_s: float


def occurrences(
    reservation: Reservation, after: datetime, before: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """When it begins and ends, each time, of those that end after `after` and begin before `before`, in
    order."""
    length = reservation.end_at - reservation.start_at
    if reservation.every_s <= 0:
        if reservation.end_at > after and reservation.start_at < before:
            yield reservation.start_at, reservation.end_at
        return
    every = timedelta(seconds=reservation.every_s)
    first, zone = reservation.start_at, UTC if reservation.every_s % DAY_S else _time_zone(reservation.zone)
    on_the_wall = first.astimezone(zone).replace(tzinfo=None)
    turn = max((after - reservation.end_at) // every, 0)  # clocks move by less than a day
    while True:
        start = (on_the_wall + turn * every).replace(tzinfo=zone).astimezone(UTC) if turn else first
        if start >= before or (reservation.until is not None and start >= reservation.until):
            return
        if start + length > after:
            yield start, start + length
        turn += 1


@cache
def _time_zone(name: str) -> tzinfo:
    """Returns UTC for an empty name, or a name that this machine does not know."""
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def is_active(reservation: Reservation, now: datetime) -> bool:
    """Returns whether the reservation has begun and not ended at that time."""
    return next(occurrences(reservation, now, now + timedelta.resolution), None) is not None


def windows(reservations: Iterable[Reservation], now: datetime) -> list[ReservationWindow]:
    """Those that have begun or come up within the horizon, by start, then name; and what follows them, where
    one repeats so often that it always does."""
    found = []
    for reservation in reservations:
        for count, (start, end) in enumerate(
            occurrences(reservation, now, now + timedelta(seconds=2 * PLANNING_HORIZON_S))
        ):
            from_s = (start - now).total_seconds()
            beyond = count == MAX_OCCURRENCES or from_s >= PLANNING_HORIZON_S
            if not beyond:
                found.append(ReservationWindow(reservation, from_s, (end - now).total_seconds()))
                continue
            if count and reservation.every_s <= PLANNING_HORIZON_S:
                found.append(ReservationWindow(reservation, from_s, inf))
            break
    return sorted(
        found, key=lambda booking: (booking.from_s, booking.reservation.name, booking.reservation.id)
    )


def may_use(gang: Gang, reservation: Reservation, queues: QueueTree) -> bool:
    """Returns whether the gang may use the reservation: its user is named, or its queue is the reservation's
    queue or below it."""
    if gang.user and gang.user in reservation.users:
        return True
    at: QueueName | None = gang.queue
    while at is not None and reservation.queue is not None:
        if at == reservation.queue:
            return True
        above = queues.queues.get(at)
        at = above.parent if above else None
    return False

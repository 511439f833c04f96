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
PLANNING_HORIZON_S = 14 * 86400.0  # how far ahead reservations are planned
# preemption is requested this much earlier than needed for the runs to end in time, even if they are killed
PREEMPTION_MARGIN_S = 120.0
MAX_OCCURRENCES = 16  # occurrences of one reservation that a plan examines


@dataclass(frozen=True, slots=True)
class ReservationWindow:
    """One occurrence of a reservation, in seconds from now; `from_s` <= 0 if it has begun. All occurrences
    after the planned ones are one window whose `until_s` is infinite: gaps that far ahead are not
    promised."""

    reservation: Reservation
    from_s: float
    until_s: float


def occurrences(
    reservation: Reservation, after: datetime, before: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """Yields the start and end of each occurrence that ends after `after` and begins before `before`, in
    order."""
    length = reservation.end_at - reservation.start_at
    if reservation.every_s <= 0:
        if reservation.end_at > after and reservation.start_at < before:
            yield reservation.start_at, reservation.end_at
        return
    interval = timedelta(seconds=reservation.every_s)
    first_start, zone = (
        reservation.start_at,
        UTC if reservation.every_s % DAY_S else _time_zone(reservation.zone),
    )
    local_start = first_start.astimezone(zone).replace(tzinfo=None)
    index = max((after - reservation.end_at) // interval, 0)  # clocks move by less than a day
    while True:
        start = (
            (local_start + index * interval).replace(tzinfo=zone).astimezone(UTC) if index else first_start
        )
        if start >= before or (reservation.until is not None and start >= reservation.until):
            return
        if start + length > after:
            yield start, start + length
        index += 1


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
    """Returns the occurrences that have begun or begin within the horizon, sorted by start, then name. A
    reservation that repeats at least once per horizon also gets a window for all later occurrences."""
    result = []
    for reservation in reservations:
        for count, (start, end) in enumerate(
            occurrences(reservation, now, now + timedelta(seconds=2 * PLANNING_HORIZON_S))
        ):
            from_s = (start - now).total_seconds()
            beyond = count == MAX_OCCURRENCES or from_s >= PLANNING_HORIZON_S
            if not beyond:
                result.append(ReservationWindow(reservation, from_s, (end - now).total_seconds()))
                continue
            if count and reservation.every_s <= PLANNING_HORIZON_S:
                result.append(ReservationWindow(reservation, from_s, inf))
            break
    return sorted(result, key=lambda window: (window.from_s, window.reservation.name, window.reservation.id))


def may_use(gang: Gang, reservation: Reservation, queues: QueueTree) -> bool:
    """Returns whether the gang may use the reservation: its user is named, or its queue is the reservation's
    queue or below it."""
    if gang.user and gang.user in reservation.users:
        return True
    level: QueueName | None = gang.queue
    while level is not None and reservation.queue is not None:
        if level == reservation.queue:
            return True
        queue = queues.queues.get(level)
        level = queue.parent if queue else None
    return False

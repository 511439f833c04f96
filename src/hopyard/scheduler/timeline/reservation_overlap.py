"""Finds overlaps of reservations, each of which may repeat."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

from hopyard.domain.reservation import Reservation
from hopyard.scheduler.timeline.reservation_windows import occurrences

MAX_OCCURRENCES_CHECKED = 10_000  # times that the rarer of two comes up
MAX_OVERLAPS_CHECKED = 400  # occurrences of a reservation that are checked for overlaps
_MAX_DATETIME = datetime.max.replace(tzinfo=UTC) - timedelta(days=366)


def first_overlap(a: Reservation, b: Reservation, after: datetime) -> datetime | None:
    """Returns the first time after `after` at which both are active; None if they never are."""
    rarer, other = (a, b) if _occurrence_frequency(a) <= _occurrence_frequency(b) else (b, a)
    for start, end in islice(occurrences(rarer, after, _MAX_DATETIME), MAX_OCCURRENCES_CHECKED):
        for begin, until in occurrences(other, max(start, after), end):
            if until > start:
                return max(start, begin, after)
    return None


def overlaps(
    reservation: Reservation, others: Sequence[Reservation], after: datetime
) -> list[tuple[datetime, tuple[Reservation, ...]]]:
    """Which of the others are there at once while `reservation` holds, and when first; every set once, by
    time."""
    found: dict[tuple[Reservation, ...], datetime] = {}
    for start, end in islice(occurrences(reservation, after, _MAX_DATETIME), MAX_OVERLAPS_CHECKED):
        spans = [
            (max(begin, start), until, other)
            for other in others
            for begin, until in occurrences(other, max(start, after), end)
        ]
        for at in sorted({begin for begin, _, _ in spans}):
            found.setdefault(tuple(other for begin, until, other in spans if begin <= at < until), at)
    for other in others:  # beyond those times
        met = (
            None if any(other in together for together in found) else first_overlap(reservation, other, after)
        )
        if met is not None:
            found[(other,)] = met
    return sorted(
        ((at, together) for together, at in found.items()),
        key=lambda pair: (pair[0], [other.name for other in pair[1]]),
    )


def _occurrence_frequency(reservation: Reservation) -> tuple[int, float]:
    """Returns a smaller key for a reservation with fewer occurrences."""
    if reservation.every_s <= 0:
        return 0, 0.0
    if reservation.until is not None:
        return 1, (reservation.until - reservation.start_at).total_seconds() / reservation.every_s
    return 2, -reservation.every_s

"""Finds overlaps of reservations, each of which may repeat."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

from hopyard.domain.reservation import Reservation
from hopyard.scheduler.timeline.reservation_windows import occurrences

MAX_OCCURRENCES_CHECKED = 10_000  # occurrences of the rarer of two reservations
MAX_OVERLAPS_CHECKED = 400  # occurrences of a reservation that are checked for overlaps
_MAX_DATETIME = datetime.max.replace(tzinfo=UTC) - timedelta(days=366)


def first_overlap(a: Reservation, b: Reservation, after: datetime) -> datetime | None:
    """Returns the first time after `after` at which both are active; None if they never are."""
    rarer, other = (a, b) if _occurrence_frequency(a) <= _occurrence_frequency(b) else (b, a)
    for start, end in islice(occurrences(rarer, after, _MAX_DATETIME), MAX_OCCURRENCES_CHECKED):
        for other_start, other_end in occurrences(other, max(start, after), end):
            if other_end > start:
                return max(start, other_start, after)
    return None


def overlaps(
    reservation: Reservation, others: Sequence[Reservation], after: datetime
) -> list[tuple[datetime, tuple[Reservation, ...]]]:
    """Returns the sets of other reservations that are active at once during `reservation`, each with its
    first time. Each set is returned once; sorted by time."""
    first_times: dict[tuple[Reservation, ...], datetime] = {}
    for start, end in islice(occurrences(reservation, after, _MAX_DATETIME), MAX_OVERLAPS_CHECKED):
        spans = [
            (max(other_start, start), other_end, other)
            for other in others
            for other_start, other_end in occurrences(other, max(start, after), end)
        ]
        for time in sorted({other_start for other_start, _, _ in spans}):
            first_times.setdefault(
                tuple(other for other_start, other_end, other in spans if other_start <= time < other_end),
                time,
            )
    for other in others:  # after the checked occurrences
        first_time = (
            None
            if any(other in active for active in first_times)
            else first_overlap(reservation, other, after)
        )
        if first_time is not None:
            first_times[(other,)] = first_time
    return sorted(
        ((time, active) for active, time in first_times.items()),
        key=lambda pair: (pair[0], [other.name for other in pair[1]]),
    )


def _occurrence_frequency(reservation: Reservation) -> tuple[int, float]:
    """Returns a smaller key for a reservation with fewer occurrences."""
    if reservation.every_s <= 0:
        return 0, 0.0
    if reservation.until is not None:
        return 1, (reservation.until - reservation.start_at).total_seconds() / reservation.every_s
    return 2, -reservation.every_s

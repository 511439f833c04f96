"""When two reservations meet, each of which may come up again and again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

from hopyard.domain.reservation import Reservation
from hopyard.scheduler.timeline.booked import occurrences

LOOKED_AT = 10_000  # times that the rarer of two comes up
TOGETHER = 400  # times that one comes up, of which it is found out who else is there at once
_EVER = datetime.max.replace(tzinfo=UTC) - timedelta(days=366)


def first_overlap(a: Reservation, b: Reservation, after: datetime) -> datetime | None:
    """When both first hold at once after `after`; None where they never do."""
    rarer, other = (a, b) if _often(a) <= _often(b) else (b, a)
    for start, end in islice(occurrences(rarer, after, _EVER), LOOKED_AT):
        for begin, until in occurrences(other, max(start, after), end):
            if until > start:
                return max(start, begin, after)
    return None


def meetings(
    wanted: Reservation, others: Sequence[Reservation], after: datetime
) -> list[tuple[datetime, tuple[Reservation, ...]]]:
    """Which of the others are there at once while `wanted` holds, and when first; every set once, by time."""
    found: dict[tuple[Reservation, ...], datetime] = {}
    for start, end in islice(occurrences(wanted, after, _EVER), TOGETHER):
        spans = [
            (max(begin, start), until, other)
            for other in others
            for begin, until in occurrences(other, max(start, after), end)
        ]
        for at in sorted({begin for begin, _, _ in spans}):
            found.setdefault(tuple(other for begin, until, other in spans if begin <= at < until), at)
    for other in others:  # beyond those times
        met = None if any(other in together for together in found) else first_overlap(wanted, other, after)
        if met is not None:
            found[(other,)] = met
    return sorted(
        ((at, together) for together, at in found.items()),
        key=lambda pair: (pair[0], [other.name for other in pair[1]]),
    )


def _often(reservation: Reservation) -> tuple[int, float]:
    """Smaller for one that comes up fewer times."""
    if reservation.every_s <= 0:
        return 0, 0.0
    if reservation.until is not None:
        return 1, (reservation.until - reservation.start_at).total_seconds() / reservation.every_s
    return 2, -reservation.every_s

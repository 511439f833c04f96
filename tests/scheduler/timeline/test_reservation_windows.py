"""Occurrences of recurring reservations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.ids import ReservationId
from hopyard.domain.reservation import Reservation
from hopyard.scheduler.timeline.reservation_windows import occurrences

BERLIN = ZoneInfo("Europe/Berlin")
DAY = timedelta(days=1)


def lecture(zone: str, every_s: float = 7 * 86400.0) -> Reservation:
    start = datetime(2026, 10, 5, 9, tzinfo=BERLIN).astimezone(UTC)
    return Reservation(
        ReservationId("r"), "class", start, start + timedelta(hours=2), every_s=every_s, zone=zone
    )


def local_hours(reservation: Reservation) -> set[int]:
    """Returns the local start hours in Berlin over a year with daylight-saving changes."""
    result = occurrences(reservation, reservation.start_at, reservation.start_at + 365 * DAY)
    return {start.astimezone(BERLIN).hour for start, _ in result}


def test_daily_repeat_keeps_its_local_time_of_day() -> None:
    assert local_hours(lecture("Europe/Berlin")) == {9}
    assert local_hours(lecture("")) == {8, 9}
    assert local_hours(lecture("Nowhere/Town")) == {8, 9}  # a server that does not know the zone


def test_repeat_of_part_days_is_exact_in_seconds() -> None:
    starts = [
        start
        for start, _ in occurrences(
            lecture("Europe/Berlin", 36 * 3600.0), lecture("").start_at, lecture("").start_at + 60 * DAY
        )
    ]
    assert {after - before for before, after in pairwise(starts)} == {timedelta(hours=36)}


@given(
    st.integers(0, 400 * 24 * 60),
    st.sampled_from(["", "Europe/Berlin", "America/St_Johns"]),
    st.sampled_from([86400.0, 7 * 86400.0, 5 * 3600.0]),
)
def test_occurrences_do_not_depend_on_the_start_of_the_search(
    minutes: int, zone: str, every_s: float
) -> None:
    reservation = lecture(zone, every_s)
    after, before = reservation.start_at + timedelta(minutes=minutes), reservation.start_at + 420 * DAY
    expected = [span for span in occurrences(reservation, reservation.start_at, before) if span[1] > after]
    assert list(occurrences(reservation, after, before)) == expected

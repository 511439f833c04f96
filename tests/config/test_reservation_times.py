"""Notations of times on the command line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest

from hopyard.config.reservation_times import parse_recurrence, parse_start_time
from hopyard.errors import SpecError

ZONE = timezone(timedelta(hours=1))
NOW = datetime(2026, 12, 2, 10, 30, tzinfo=ZONE)  # a Wednesday


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("+2h", datetime(2026, 12, 2, 12, 30, tzinfo=ZONE)),
        ("+1d12h", datetime(2026, 12, 3, 22, 30, tzinfo=ZONE)),
        ("2026-12-24 09:00", datetime(2026, 12, 24, 9, 0, tzinfo=ZONE)),
        ("2026-12-24T09:00:30", datetime(2026, 12, 24, 9, 0, 30, tzinfo=ZONE)),
        ("2026-12-24T09:00+05:30", datetime(2026, 12, 24, 4, 30, tzinfo=ZONE)),
        ("2026-12-24T09:00Z", datetime(2026, 12, 24, 10, 0, tzinfo=ZONE)),
        ("2026-12-24", datetime(2026, 12, 24, 0, 0, tzinfo=ZONE)),
        ("11:00", datetime(2026, 12, 2, 11, 0, tzinfo=ZONE)),
        ("9:00", datetime(2026, 12, 3, 9, 0, tzinfo=ZONE)),
        ("today 09:00", datetime(2026, 12, 2, 9, 0, tzinfo=ZONE)),
        ("Tomorrow  9:00", datetime(2026, 12, 3, 9, 0, tzinfo=ZONE)),
        ("monday 09:00", datetime(2026, 12, 7, 9, 0, tzinfo=ZONE)),
        ("wed 09:00", datetime(2026, 12, 9, 9, 0, tzinfo=ZONE)),
        ("wed 11:00", datetime(2026, 12, 2, 11, 0, tzinfo=ZONE)),
    ],
)
def test_time_notations(text: str, expected: datetime) -> None:
    assert parse_start_time(text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "25:00",
        "9:60",
        "2026-13-01 09:00",
        "tomorrow",
        "+",
        "+2x",
        "2026-12-24 09:00 tomorrow",
        "\x00",
    ],
)
def test_invalid_time_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_start_time(text, NOW)
    assert refused.value.message.startswith("--from: ") and refused.value.hints


@pytest.fixture
def before_daylight_saving(monkeypatch: pytest.MonkeyPatch) -> Iterator[datetime]:
    """The evening before the start of daylight saving in Berlin, in the zone of this machine."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield datetime(2027, 3, 27, 20, 0).astimezone()
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2027-03-28 01:30", datetime(2027, 3, 28, 0, 30, tzinfo=UTC)),
        ("2027-03-28 03:00", datetime(2027, 3, 28, 1, 0, tzinfo=UTC)),
        ("tomorrow 09:00", datetime(2027, 3, 28, 7, 0, tzinfo=UTC)),
        ("09:00", datetime(2027, 3, 28, 7, 0, tzinfo=UTC)),
        ("sat 21:00", datetime(2027, 3, 27, 20, 0, tzinfo=UTC)),
        ("sat 19:00", datetime(2027, 4, 3, 17, 0, tzinfo=UTC)),
        ("+24h", datetime(2027, 3, 28, 19, 0, tzinfo=UTC)),
        ("2027-10-31 02:30", datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),  # the first of two
        ("2027-10-31T02:30+01:00", datetime(2027, 10, 31, 1, 30, tzinfo=UTC)),
    ],
)
def test_time_of_day_uses_the_utc_offset_of_its_day(
    before_daylight_saving: datetime, text: str, expected: datetime
) -> None:
    assert parse_start_time(text, before_daylight_saving) == expected


@pytest.mark.parametrize(
    "text", ["2027-03-28 02:30", "2027-03-28T02:00", "sunday 02:30", "02:59", "tomorrow 02:00:01"]
)
def test_time_skipped_by_daylight_saving_is_refused(before_daylight_saving: datetime, text: str) -> None:
    with pytest.raises(
        SpecError, match=r"--until: 02:\d\d on 2027-03-28 does not exist here: clocks are set forward over it"
    ):
        parse_start_time(text, before_daylight_saving, what="--until")


def test_recurrence_notations() -> None:
    assert [parse_recurrence(text) for text in ("day", "Week", "days", "daily", "hour", "12h")] == [
        86400,
        604800,
        86400,
        86400,
        3600,
        43200,
    ]
    with pytest.raises(SpecError) as refused:
        parse_recurrence("fortnight")
    assert "day, week" in refused.value.hints[0]

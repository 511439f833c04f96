"""What people type for times."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from hopyard.config.reservations import parse_every, parse_when
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
def test_a_time_is_read_as_people_mean_it(text: str, expected: datetime) -> None:
    assert parse_when(text, NOW) == expected


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "9:60", "2026-13-01 09:00", "tomorrow", "+", "+2x", "2026-12-24 09:00 tomorrow", "\x00"]
)
def test_what_is_no_time_is_refused_with_how_one_is_written(text: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_when(text, NOW)
    assert refused.value.message.startswith("--from: ") and refused.value.hints


def test_how_often() -> None:
    assert [parse_every(text) for text in ("day", "Week", "days", "daily", "hour", "12h")] == [
        86400,
        604800,
        86400,
        86400,
        3600,
        43200,
    ]
    with pytest.raises(SpecError) as refused:
        parse_every("fortnight")
    assert "day, week" in refused.value.hints[0]

"""Points in time as people read them here: in the zone of this machine."""

from __future__ import annotations

from datetime import UTC, datetime

from hopyard.cli.console import span


def clock(moment: str) -> str:
    """`14:05` today, `2026-12-01 09:00` on another day."""
    at = datetime.fromisoformat(moment).astimezone()
    return at.strftime("%H:%M" if at.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M")


def seconds_to(moment: str) -> float:
    """Seconds until then; negative when it is over."""
    return (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()


def soon(moment: str) -> str:
    """How long it is until then: `in 12 min 30 s`, or `now` where it has come."""
    left_s = seconds_to(moment)
    return f"in {span(left_s)}" if left_s >= 1 else "now"


def between(start: str, end: str) -> str:
    """`2026-12-01 09:00 to 13:00`; with the day of the end where it is another."""
    begin, stop = datetime.fromisoformat(start).astimezone(), datetime.fromisoformat(end).astimezone()
    last = stop.strftime("%H:%M" if stop.date() == begin.date() else "%Y-%m-%d %H:%M")
    return f"{begin:%Y-%m-%d %H:%M} to {last}"

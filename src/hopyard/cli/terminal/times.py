"""Points in time as people read them here: in the zone of this machine."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hopyard.domain import duration_text

SECONDS_SHOWN_WITHIN_S = 600.0  # within so long of now, before or after, seconds are told
_UTC_TIME_PATTERN = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d)(:\d\d)? UTC")


def format_clock(time: str, *, show_seconds: bool | None = None) -> str:
    """`14:05` today, `2026-12-01 09:00` on another day, `14:05:08` within ten minutes of now.

    show_seconds: whether they are told, where not only the distance decides that.
    """
    now, at = datetime.now().astimezone(), datetime.fromisoformat(time).astimezone()
    if show_seconds is None:
        show_seconds = abs((at - now).total_seconds()) < SECONDS_SHOWN_WITHIN_S
    return at.strftime(
        ("" if at.date() == now.date() else "%Y-%m-%d ") + ("%H:%M:%S" if show_seconds else "%H:%M")
    )


def format_clocks(*times: str) -> list[str]:
    """Each as `clock` tells it; all with seconds where the first and the last would be the same without."""
    told = [format_clock(moment) for moment in times]
    return told if told[0] != told[-1] else [format_clock(moment, show_seconds=True) for moment in times]


def localise_times(text: str) -> str:
    """A sentence of the server, which tells moments as `2026-12-01 08:00:00 UTC`, with each as `clock` tells
    it.

    Where it tells no seconds, none are made up.
    """
    return _UTC_TIME_PATTERN.sub(
        lambda found: format_clock(
            f"{found[1]}T{found[2]}{found[3] or ''}+00:00", show_seconds=None if found[3] else False
        ),
        text,
    )


def seconds_until(time: str) -> float:
    """Seconds until then; negative when it is over."""
    return (datetime.fromisoformat(time) - datetime.now(UTC)).total_seconds()


def format_time_until(time: str) -> str:
    """How long it is until then: `in 12 min 30 s`, or `now` where it has come."""
    return duration_text.format_time_until(seconds_until(time))


def format_interval(start: str, until: str) -> str:
    """`2026-12-01 09:00 to 13:00`; with the day of the end where it is another."""
    begin, stop = datetime.fromisoformat(start).astimezone(), datetime.fromisoformat(until).astimezone()
    last = stop.strftime("%H:%M" if stop.date() == begin.date() else "%Y-%m-%d %H:%M")
    return f"{begin:%Y-%m-%d %H:%M} to {last}"

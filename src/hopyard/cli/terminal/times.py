"""Points in time as people read them here: in the zone of this machine."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hopyard.domain import duration_text

SECONDS_SHOWN_WITHIN_S = 600.0  # seconds are shown for times this close to now
_UTC_TIME_PATTERN = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d)(:\d\d)? UTC")


def format_clock(time: str, *, show_seconds: bool | None = None) -> str:
    """Returns `14:05` for today, `2026-12-01 09:00` for another day, `14:05:08` within ten minutes of now.

    show_seconds: whether to show seconds, in place of the rule of ten minutes.
    """
    now, at = datetime.now().astimezone(), datetime.fromisoformat(time).astimezone()
    if show_seconds is None:
        show_seconds = abs((at - now).total_seconds()) < SECONDS_SHOWN_WITHIN_S
    return at.strftime(
        ("" if at.date() == now.date() else "%Y-%m-%d ") + ("%H:%M:%S" if show_seconds else "%H:%M")
    )


def format_clocks(*times: str) -> list[str]:
    """Returns each time as `format_clock` does; all with seconds if the first and the last would be equal
    without."""
    texts = [format_clock(moment) for moment in times]
    return texts if texts[0] != texts[-1] else [format_clock(moment, show_seconds=True) for moment in times]


def localise_times(text: str) -> str:
    """Returns a sentence of the server with each `2026-12-01 08:00:00 UTC` in the form of `format_clock`. A
    time without seconds gets none."""
    return _UTC_TIME_PATTERN.sub(
        lambda match: format_clock(
            f"{match[1]}T{match[2]}{match[3] or ''}+00:00", show_seconds=None if match[3] else False
        ),
        text,
    )


def seconds_until(time: str) -> float:
    """Returns the seconds until then; negative for the past."""
    return (datetime.fromisoformat(time) - datetime.now(UTC)).total_seconds()


def format_time_until(time: str) -> str:
    """Returns the time until then: `in 12 min 30 s`, or `now` for the past."""
    return duration_text.format_time_until(seconds_until(time))


def format_interval(start: str, until: str) -> str:
    """Returns `2026-12-01 09:00 to 13:00`; with the day of the end if it is another day."""
    begin, stop = datetime.fromisoformat(start).astimezone(), datetime.fromisoformat(until).astimezone()
    last = stop.strftime("%H:%M" if stop.date() == begin.date() else "%Y-%m-%d %H:%M")
    return f"{begin:%Y-%m-%d %H:%M} to {last}"

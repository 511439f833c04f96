"""Points in time as people read them here: in the zone of this machine."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hopyard.domain import spans

_SAID = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d(?::\d\d)?) UTC")


def clock(moment: str) -> str:
    """`14:05` today, `2026-12-01 09:00` on another day."""
    at = datetime.fromisoformat(moment).astimezone()
    return at.strftime("%H:%M" if at.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M")


def localised(text: str) -> str:
    """A sentence of the server, which tells moments as `2026-12-01 08:00:00 UTC`, with each as `clock` tells it."""
    return _SAID.sub(lambda found: clock(f"{found[1]}T{found[2]}+00:00"), text)


def seconds_to(moment: str) -> float:
    """Seconds until then; negative when it is over."""
    return (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()


def soon(moment: str) -> str:
    """How long it is until then: `in 12 min 30 s`, or `now` where it has come."""
    return spans.soon(seconds_to(moment))


def between(start: str, end: str) -> str:
    """`2026-12-01 09:00 to 13:00`; with the day of the end where it is another."""
    begin, stop = datetime.fromisoformat(start).astimezone(), datetime.fromisoformat(end).astimezone()
    last = stop.strftime("%H:%M" if stop.date() == begin.date() else "%Y-%m-%d %H:%M")
    return f"{begin:%Y-%m-%d %H:%M} to {last}"

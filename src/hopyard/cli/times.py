"""Points in time as people read them here: in the zone of this machine."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hopyard.domain import spans

NEAR_S = 600.0  # within so long of now, before or after, seconds are told
_SAID = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d)(:\d\d)? UTC")


def clock(moment: str, *, seconds: bool | None = None) -> str:
    """`14:05` today, `2026-12-01 09:00` on another day, `14:05:08` within ten minutes of now.

    seconds: whether they are told, where not only the distance decides that.
    """
    now, at = datetime.now().astimezone(), datetime.fromisoformat(moment).astimezone()
    if seconds is None:
        seconds = abs((at - now).total_seconds()) < NEAR_S
    return at.strftime(
        ("" if at.date() == now.date() else "%Y-%m-%d ") + ("%H:%M:%S" if seconds else "%H:%M")
    )


def clocks(*moments: str) -> list[str]:
    """Each as `clock` tells it; all with seconds where the first and the last would be the same without."""
    told = [clock(moment) for moment in moments]
    return told if told[0] != told[-1] else [clock(moment, seconds=True) for moment in moments]


def localised(text: str) -> str:
    """A sentence of the server, which tells moments as `2026-12-01 08:00:00 UTC`, with each as `clock` tells
    it.

    Where it tells no seconds, none are made up.
    """
    return _SAID.sub(
        lambda found: clock(
            f"{found[1]}T{found[2]}{found[3] or ''}+00:00", seconds=None if found[3] else False
        ),
        text,
    )


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

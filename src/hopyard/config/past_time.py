"""Parses a past moment on the command line."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from hopyard.config.reservation_times import parse_start_time
from hopyard.config.units import parse_time
from hopyard.errors import SpecError

_HINT = "a moment is written 2026-11-01, 2026-11-01 09:00, today, yesterday, now, or as an age: 7d, 12h"
_AGE_PATTERN = re.compile(r"-?(\d+(?:\.\d+)?[a-z]+)(?: ago)?", re.ASCII)


def parse_past_time(text: str, now: datetime, *, what: str, allow_future: bool = False) -> datetime:
    """Returns a point in time; without an offset, in the zone of `now`. A day alone is its beginning.
    allow_future: it may be in the future, as the end of the current month is. Raises SpecError."""
    words = " ".join(text.strip().lower().split())
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if words in ("today", "yesterday"):
        return midnight - timedelta(days=words == "yesterday")
    if words == "now":
        return now
    if match := _AGE_PATTERN.fullmatch(words):
        return now - timedelta(seconds=parse_time(match[1], what=what))
    try:
        moment = parse_start_time(text, now, what=what)
    except SpecError as error:
        raise SpecError(error.message, hints=(_HINT,)) from error
    if moment > now and not allow_future:
        raise SpecError(f"{what}: `{text}` is in the future", hints=(_HINT,))
    return moment

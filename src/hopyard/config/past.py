"""What people type for a moment that has passed: of what span they ask."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from hopyard.config.reservations import parse_when
from hopyard.config.units import parse_time
from hopyard.errors import SpecError

_HINT = "a moment is written 2026-11-01, 2026-11-01 09:00, today, yesterday, now, or as an age: 7d, 12h"
_AGE = re.compile(r"-?(\d+(?:\.\d+)?[a-z]+)(?: ago)?", re.ASCII)


def parse_past(text: str, now: datetime, *, what: str, ahead: bool = False) -> datetime:
    """A point in time; without an offset, in the zone of `now`. A day alone is its beginning.
    ahead: it may lie ahead, as the end of a month that is not over. Raises SpecError."""
    given = " ".join(text.strip().lower().split())
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if given in ("today", "yesterday"):
        return midnight - timedelta(days=given == "yesterday")
    if given == "now":
        return now
    if age := _AGE.fullmatch(given):
        return now - timedelta(seconds=parse_time(age[1], what=what))
    try:
        found = parse_when(text, now, what=what)
    except SpecError as bad:
        raise SpecError(bad.message, hints=(_HINT,)) from bad
    if found > now and not ahead:
        raise SpecError(f"{what}: `{text}` is not over yet", hints=(_HINT,))
    return found

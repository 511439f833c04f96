"""Durations as text, in one format for all sentences and tables."""

from __future__ import annotations

_UNITS = ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s"))


def format_duration(seconds: float) -> str:
    """Formats a duration: `0.42 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    return format_whole_duration(seconds)


def format_whole_duration(seconds: float) -> str:
    """Formats a duration without fractions: `5 s`, for estimates."""
    total_s = round(seconds)
    for size, small, unit, small_unit in _UNITS:
        if total_s >= size:
            rest = total_s % size // small
            return f"{total_s // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{total_s} s"


def format_time_until(seconds: float) -> str:
    """Formats the time until an event: `now`, `in 40 s`, `in 12 min 30 s`."""
    return f"in {format_whole_duration(seconds)}" if seconds >= 1 else "now"

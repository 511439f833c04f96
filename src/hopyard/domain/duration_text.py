"""Spans of time as people read them, the same in every sentence and table."""

from __future__ import annotations

_UNITS = ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s"))


def format_duration(seconds: float) -> str:
    """A span for reading: `0.42 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    return format_whole_duration(seconds)


def format_whole_duration(seconds: float) -> str:
    """The same without fractions: `5 s`, for what is only expected."""
    whole = round(seconds)
    for size, small, word, rest_word in _UNITS:
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {word}" + (f" {rest} {rest_word}" if rest else "")
    return f"{whole} s"


def format_time_until(seconds: float) -> str:
    """How long it is until then: `now`, `in 40 s`, `in 12 min 30 s`."""
    return f"in {format_whole_duration(seconds)}" if seconds >= 1 else "now"

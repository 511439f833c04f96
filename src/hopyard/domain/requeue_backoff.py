"""The causes of a requeue, and the backoff before the next attempt."""

from __future__ import annotations

from enum import StrEnum

INITIAL_BACKOFF_S, MAX_BACKOFF_S = 2.0, 300.0


class RequeueCause(StrEnum):
    LOST = "lost"  # its processes disappeared; the number of such attempts in a row is limited
    # its node, or the server, could not start it: not the fault of the run, so it may happen any number of
    # times
    NODE_FAULT = "node-fault"
    PREEMPTED = "made-room"  # for another run


def backoff_s(cause: RequeueCause, count: int) -> float:
    """Returns the seconds until the next attempt, after `count` failures of this cause in a row.

    The backoff for a faulty node grows with each attempt. A first loss is retried at once, because its cause
    is over.
    """
    if cause is RequeueCause.NODE_FAULT:
        return _exponential_backoff_s(count)
    return _exponential_backoff_s(count - 1) if cause is RequeueCause.LOST and count > 1 else 0.0


def _exponential_backoff_s(count: int) -> float:
    return min(INITIAL_BACKOFF_S * 2.0 ** min(count - 1, 30), MAX_BACKOFF_S)


def ordinal(number: int) -> str:
    """Formats an ordinal number: 1st, 2nd, 3rd, 4th, 11th, 21st."""
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"

"""What puts a run back into the queue, and how long it waits there before it is tried again."""

from __future__ import annotations

from enum import StrEnum

INITIAL_BACKOFF_S, MAX_BACKOFF_S = 2.0, 300.0


class RequeueCause(StrEnum):
    LOST = "lost"  # its processes vanished; a run may lose so many attempts in a row
    # its node, or the server, could not start it: however often, that is not the run's doing
    NODE_FAULT = "node-fault"
    PREEMPTED = "made-room"  # for another run


def backoff_s(cause: RequeueCause, count: int) -> float:
    """Seconds until the next try, after `count` setbacks of this kind in a row.

    A node in trouble is given more time after each try. A first loss is repeated at once: what killed the
    processes is over.
    """
    if cause is RequeueCause.NODE_FAULT:
        return _exponential_backoff_s(count)
    return _exponential_backoff_s(count - 1) if cause is RequeueCause.LOST and count > 1 else 0.0


def _exponential_backoff_s(count: int) -> float:
    return min(INITIAL_BACKOFF_S * 2.0 ** min(count - 1, 30), MAX_BACKOFF_S)


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"

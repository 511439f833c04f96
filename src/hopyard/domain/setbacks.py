"""What puts a run back into the queue, and how long it waits there before it is tried again."""

from __future__ import annotations

from enum import StrEnum

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 300.0


class Setback(StrEnum):
    LOST = "lost"  # its processes vanished; a run may lose so many attempts in a row
    # its node, or the server, could not start it: however often, that is not the run's doing
    NODE_FAULT = "node-fault"
    MADE_ROOM = "made-room"  # for another run


def pause_s(setback: Setback, times: int) -> float:
    """Seconds until the next try, after `times` setbacks of this kind in a row.

    A node in trouble is given more time after each try. A first loss is repeated at once: what killed the
    processes is over.
    """
    if setback is Setback.NODE_FAULT:
        return _growing(times)
    return _growing(times - 1) if setback is Setback.LOST and times > 1 else 0.0


def _growing(times: int) -> float:
    return min(FIRST_PAUSE_S * 2.0 ** min(times - 1, 30), LONGEST_PAUSE_S)


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"

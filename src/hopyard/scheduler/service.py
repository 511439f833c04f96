"""Time slicing: in a queue that says `time_slices`, runs that were served long give way to those that were served little.

Nobody knows beforehand how long a run takes, but most are short and few are very long; for such lifetimes, serving first who
was served least comes close to the best mean completion time that is possible without that knowledge (Nuyens and Wierman, The
Foreground-Background queue: a survey, Performance Evaluation 2008). Served time is cut into classes that grow by a factor, as
multi-level feedback does and as Tiresias does with two (Gu et al., Tiresias, NSDI'19), so that runs alike are served in turn of
submission and not by the second.

A class is a part of the priority: smaller is better, and it counts only between gangs of one queue and equal priority. Hence no
two gangs that preempt each other in turn for nothing: a class never gets better, so whoever preempted somebody must be served
until it is in a worse class than that one was, several times as long as the other had, before it gives way to it.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime

from hopyard.domain.cluster import Running
from hopyard.domain.gang import Gang

FIRST_S = 60.0  # until it was served so long, a gang is in the best class
FACTOR = 4.0  # every class ends at so many times what the one before ended at
CLASSES = 11  # whoever is in the last stays there: it begins after half a year
QUANTUM_S = 600.0  # nobody gives way sooner after its processes began, so that little time goes into saving and restoring

_BEGINS_S = [FIRST_S * FACTOR**number for number in range(CLASSES - 1)]  # of class 1 and so on


def service_class(served_s: float) -> int:
    """The class of a gang that was served so many seconds in all its attempts; 0 is the best, and no gang ever gets into a
    better one. Of one that waits, `Gang.served_s` decides: its class stays as it is until it has run again."""
    return bisect_right(_BEGINS_S, served_s)


def served_s(running: Running, now: datetime) -> float:
    """Seconds that a gang that holds resources was served, this attempt included."""
    return running.gang.served_s + _ran_s(running, now)


def gives_way_in_s(running: Running, gang: Gang, now: datetime) -> float:
    """In how many seconds, if it goes on, a run will be in a worse class than a gang of the same queue and priority that waits,
    and has run long enough in this attempt to be asked for its place. 0.0: it gives way now. Infinite: never.

    A plan that leaves the gang waiting looks again after the smallest of these.
    """
    worse = service_class(gang.served_s)
    if worse >= len(_BEGINS_S):
        return float("inf")
    after_s = max(_BEGINS_S[worse] - running.gang.served_s, QUANTUM_S)  # of this attempt
    return max(after_s - _ran_s(running, now), 0.0)


def gives_way(running: Running, gang: Gang, now: datetime) -> bool:
    """Whether a run may be asked to make room for a gang of the same queue and priority that waits."""
    return gives_way_in_s(running, gang, now) <= 0.0


def _ran_s(running: Running, now: datetime) -> float:
    """0 where its processes have not begun, and where a clock went back."""
    return 0.0 if running.started_at is None else max((now - running.started_at).total_seconds(), 0.0)

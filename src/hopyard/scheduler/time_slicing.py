"""Time slicing: in a queue that says `time_slices`, runs that were served long give way to those that were
served little.

Nobody knows beforehand how long a run takes, but most are short and few are very long; for such lifetimes,
serving first who was served least comes close to the best mean completion time that is possible without that
knowledge (Nuyens and Wierman, The Foreground-Background queue: a survey, Performance Evaluation 2008). What
was served is cut into classes that grow by a factor, as multi-level feedback does and as Tiresias does with
two (Gu et al., Tiresias, NSDI'19), so that runs alike are served in turn of submission and not by the second.

Service is seconds times the square root of GPUs. The mean gains most when GPU time counts, as in Tiresias;
but large gangs are also the long ones and hard to place, and the last to end gain when time counts alone. On
real and made-up workloads the middle was never far from the better of both (docs/internals/benchmarks.md,
Philly).

A class is a part of the priority: smaller is better, and it counts only between gangs of one queue and equal
priority. Hence no two gangs that preempt each other in turn for nothing: a class never gets better, so
whoever preempted somebody must be served until it is in a worse class than that one was, several times as
long as the other had, before it gives way to it.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime
from math import sqrt

from hopyard.domain.cluster import Running
from hopyard.domain.duration_keys import total_gpus
from hopyard.domain.gang import Gang

FIRST_CLASS_END_S = 60.0  # until it was served so long, a gang of one GPU is in the best class
CLASS_GROWTH_FACTOR = 4.0  # every class ends at so many times what the one before ended at
CLASS_COUNT = 12  # a run in the last class stays there; it begins after two years of service
# a run is not preempted sooner after its processes start, so that little time goes into checkpoints
QUANTUM_S = 600.0

# of class 1 and so on
_CLASS_STARTS_S = [FIRST_CLASS_END_S * CLASS_GROWTH_FACTOR**number for number in range(CLASS_COUNT - 1)]


def service_class(gang: Gang, served_s: float) -> int:
    """The class of a gang that was served so many seconds in all its attempts; 0 is the best, and no gang
    ever gets into a better one. Of one that waits, `Gang.served_s` decides: its class stays as it is until it
    has run again."""
    return bisect_right(_CLASS_STARTS_S, served_s * _service_weight(gang))


def preemptible_after_s(gang: Gang) -> list[float]:
    """For each class but the last, the best first: how long an attempt of the gang runs until it gives way to
    gangs of that class, and of the same queue and priority, that wait. It does so once it is in a worse class
    itself, never within its quantum."""
    weight = _service_weight(gang)
    return [max(begins_s / weight - gang.served_s, QUANTUM_S) for begins_s in _CLASS_STARTS_S]


def served_s(running: Running, now: datetime) -> float:
    """Seconds that a gang that holds resources was served, this attempt included."""
    return running.gang.served_s + _attempt_service_s(running, now)


def _service_weight(gang: Gang) -> float:
    return sqrt(max(total_gpus(gang), 1))


def _attempt_service_s(running: Running, now: datetime) -> float:
    """0 where its processes have not begun, and where a clock went back."""
    return 0.0 if running.started_at is None else max((now - running.started_at).total_seconds(), 0.0)

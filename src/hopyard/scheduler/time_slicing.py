"""Time slicing: in a queue with `time_slices`, runs that were served long are preempted for gangs that were
served little.

The duration of a run is not known beforehand, but most runs are short and few are very long. For such
lifetimes, serving the least served first comes close to the best mean completion time that is possible
without that knowledge (Nuyens and Wierman, The Foreground-Background queue: a survey, Performance Evaluation
2008). Service is divided into classes that grow by a factor, as in multi-level feedback, and as in Tiresias
with two classes (Gu et al., Tiresias, NSDI'19). So similar runs are served in order of submission, and do not
alternate by the second.

Service is seconds times the square root of GPUs. The mean improves most if GPU time counts, as in Tiresias.
But large gangs are also long and hard to place, and the last runs to end improve if time counts alone. On
real and synthetic workloads, the compromise was never far from the better of both
(docs/internals/benchmarks.md, Philly).

A class is part of the priority: smaller is better. It counts only between gangs of one queue and equal
priority. Therefore two gangs do not preempt each other in turn without progress. A class never improves, so a
preemptor must be served until its class is worse than that of the preempted run. This takes several times as
long as the preempted run was served. Only then can it be preempted in return.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime
from math import sqrt

from hopyard.domain.cluster import Running
from hopyard.domain.duration_keys import total_gpus
from hopyard.domain.gang import Gang

FIRST_CLASS_END_S = 60.0  # a gang of one GPU is in the best class until it was served this long
CLASS_GROWTH_FACTOR = 4.0  # each class ends at this many times the end of the previous class
CLASS_COUNT = 12  # a run in the last class stays there; it begins after two years of service
# a run is not preempted earlier after its processes start, so that little time goes into checkpoints
QUANTUM_S = 600.0

# the starts of class 1 and later classes
_CLASS_STARTS_S = [FIRST_CLASS_END_S * CLASS_GROWTH_FACTOR**number for number in range(CLASS_COUNT - 1)]


def service_class(gang: Gang, served_s: float) -> int:
    """Returns the class of a gang that was served for this many seconds in all its attempts. 0 is the best
    class, and the class of a gang never improves. For a pending gang, `Gang.served_s` decides: its class does
    not change until it has run again."""
    return bisect_right(_CLASS_STARTS_S, served_s * _service_weight(gang))


def preemptible_after_s(gang: Gang) -> list[float]:
    """Returns for each class but the last, the best first, how long an attempt of the gang runs until pending
    gangs of that class, of the same queue and priority, may preempt it. This is the time at which its own
    class is worse, and never within its quantum."""
    weight = _service_weight(gang)
    return [max(begins_s / weight - gang.served_s, QUANTUM_S) for begins_s in _CLASS_STARTS_S]


def served_s(running: Running, now: datetime) -> float:
    """Returns the seconds that a gang with resources was served, this attempt included."""
    return running.gang.served_s + _attempt_service_s(running, now)


def _service_weight(gang: Gang) -> float:
    return sqrt(max(total_gpus(gang), 1))


def _attempt_service_s(running: Running, now: datetime) -> float:
    """Returns 0 if the processes have not started, or if the clock was set back."""
    return 0.0 if running.started_at is None else max((now - running.started_at).total_seconds(), 0.0)

"""How long a gang is expected to run, with a band, from its time limit and from what ran before it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import is_not

import numpy as np
from numpy.typing import NDArray

from hopyard.domain.durations import KEPT, history_keys
from hopyard.domain.gang import Gang

ENOUGH = 8.0  # runs alike of which nobody asks what other runs took
# quantiles of the ends of a band; further out than its eight of ten, since runs alike come in bursts
BAND = (0.06, 0.5, 0.94)
# the running sums of weights of a history in which each run counts fully
ALL_ALIKE = tuple(map(float, range(1, KEPT + 1)))
# the band without any history, and what fills up one of too few runs; with a time limit, that is expected to
# be used up
UNKNOWN_S = (60.0, 3600.0, 7 * 86400.0)
PACE = (0.8, 1.5)  # what is left of a run that tells how far it is may take so many times what its pace says
TELLS_PACE = 0.02  # the part that must be done: before that, its start counts too much
NEVER_S = 10 * 365 * 86400.0  # no band reaches further
MOST_KNOWN = 512  # histories that are remembered
Durations = Mapping[str, Sequence[float]]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Expected:
    """Seconds: `low_s` <= `mid_s` <= `high_s`; eight of ten are expected between the outer two.

    certain: `high_s` is a time limit, at which it is ended: it takes no longer.
    """

    low_s: float
    mid_s: float
    high_s: float
    certain: bool = False


def exactly(seconds: float) -> Expected:
    """No band at all."""
    return Expected(seconds, seconds, seconds, certain=True)


@dataclass(frozen=True, slots=True)
class History:
    """Finished runs to predict from, the most telling ones weighing most.

    seconds: sorted. weights: running sums of the weight of each, without a leading 0. runs: how many runs
    tell this; where they are fewer than ENOUGH, the rest is what a run takes of which nothing is known.
    """

    seconds: tuple[float, ...]
    weights: tuple[float, ...]
    runs: int = 0
    # of both, once they were asked for
    _arrays: list[Floats] = field(default_factory=list, compare=False, repr=False)

    def total_s(self, elapsed_s: float = 0.0) -> tuple[tuple[float, float, float], float]:
        """The band of the whole duration of a run that has run for `elapsed_s` already, and until when, in
        seconds since its start, that band stays as it is while nothing else is learned.

        It is taken from the runs that took longer than that. One that has outlived nearly all of them goes on
        as the lifetimes of processes do (Harchol-Balter and Downey, Exploiting Process Lifetime
        Distributions, SIGMETRICS'96): half of those that ran t seconds run 2t; so the longer it overran, the
        longer it is expected to go on.
        """
        gone = bisect_right(self.seconds, elapsed_s)
        before = self.weights[gone - 1] if gone else 0.0
        left = (self.weights[-1] if self.weights else 0.0) - before
        if left >= 1.0 or (left > 0 and not gone):
            low, mid, high = (self._at(before + share * left) for share in BAND)
            return (low, mid, max(high, mid * (1 + 1 / (1 + left)))), self.seconds[gone]
        if not self.seconds and elapsed_s < UNKNOWN_S[1]:
            return UNKNOWN_S, UNKNOWN_S[1]
        return _outlived(elapsed_s)

    def ends_s(self, elapsed_s: Floats) -> Floats:
        """The middle and the upper end of `total_s` for many runs at once, and until when these hold, as
        three rows; not a number for those that outlived nearly all of the history, and for an empty one."""
        found = np.full((3, len(elapsed_s)), np.nan)
        if self.seconds:
            if not self._arrays:
                self._arrays.extend((np.array(self.seconds), np.array(self.weights)))
            seconds, weights = self._arrays
            last = len(seconds) - 1
            gone = np.searchsorted(seconds, elapsed_s, side="right")
            before = np.where(gone > 0, weights[np.maximum(gone - 1, 0)], 0.0)
            left = weights[-1] - before
            mid, high = (
                seconds[np.minimum(np.searchsorted(weights, before + share * left, side="right"), last)]
                for share in BAND[1:]
            )
            known = (left >= 1.0) | (gone == 0)
            found[:, known] = np.array(
                [mid, np.maximum(high, mid * (1 + 1 / (1 + left))), seconds[np.minimum(gone, last)]]
            )[:, known]
        return found

    def _at(self, weight: float) -> float:
        return self.seconds[min(bisect_right(self.weights, weight), len(self.seconds) - 1)]


def history(gang: Gang, durations: Durations) -> History:
    """What is known of runs like this one: first of those that tell most (see `domain.durations`), and where
    these are too few, of the next with what weight is missing."""
    return history_of(telling(history_keys(gang), durations)[0])


def telling(keys: Sequence[str], durations: Durations) -> tuple[tuple[Sequence[float], ...], Sequence[str]]:
    """What finished runs took by the first of these keys that together tell enough, and these keys: what is
    known by the others does not matter."""
    found: list[Sequence[float]] = []
    known: Counter[float] = Counter()
    for looked, key in enumerate(keys, 1):
        samples = durations.get(key)
        if samples:
            found.append(samples)
            if len(samples) >= ENOUGH or (known := known | Counter(samples)).total() >= ENOUGH:
                return tuple(found), keys[:looked]
    return tuple(found), keys


# by the identity of what they were made from, which is kept
_KNOWN: dict[tuple[int, ...], tuple[tuple[Sequence[float], ...], History]] = {}


def is_known(gang: Gang, durations: Durations) -> bool:
    """Whether it is known how long it takes: it has a time limit, or enough runs tell."""
    return gang.time_limit_s is not None or history(gang, durations).runs >= ENOUGH


def history_of(levels: tuple[Sequence[float], ...]) -> History:
    """Made once for the same tuples: to compare hundreds of numbers to find it again would take as long as
    all that is asked of it."""
    if not all(type(samples) is tuple for samples in levels):
        return _history(levels)
    key = tuple(map(id, levels))
    known = _KNOWN.get(key)
    if known is None or any(map(is_not, known[0], levels)):
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[key] = levels, _history(levels)
    return known[1]


def expect(gang: Gang, durations: Durations) -> Expected:
    """The whole duration of a gang that has not started."""
    return whole(gang, durations)[0]


def whole(gang: Gang, durations: Durations, elapsed_s: float = 0.0) -> tuple[Expected, float]:
    """The whole duration of a gang that has run for `elapsed_s`, and how long, in seconds since its start,
    this answer holds."""
    return whole_of(gang, history(gang, durations), elapsed_s)


def whole_of(gang: Gang, known: History, elapsed_s: float = 0.0) -> tuple[Expected, float]:
    """`whole`, where the history is at hand. An attempt of a gang that was served before may go on where that
    ended, or begin anew; one that has outlived its like in all takes long again in both cases."""
    if not known.seconds and gang.time_limit_s is not None:
        return Expected(gang.time_limit_s / 10, gang.time_limit_s, gang.time_limit_s, certain=True), NEVER_S
    gone_s = max(elapsed_s, 0.0)
    (low_s, mid_s, high_s), until_s = known.total_s(gone_s)
    if gang.served_s > 0:
        in_all, in_all_until_s = known.total_s(gang.served_s + gone_s)
        low_s = max(min(low_s, in_all[0] - gang.served_s), 0.0)
        mid_s, high_s = max(mid_s, in_all[1] - gang.served_s), max(high_s, in_all[2] - gang.served_s)
        until_s = min(until_s, in_all_until_s - gang.served_s)
    return _limited((low_s, mid_s, high_s), gang.time_limit_s), until_s


def paced(gang: Gang, part: float, elapsed_s: float) -> Expected:
    """The whole duration of an attempt that runs for `elapsed_s`, of a gang that has done this part of all it
    has to do, its earlier attempts included: it goes on as fast as so far, with half as long again at the
    most."""
    gone_s = max(elapsed_s, 0.0)
    left_s = (gang.served_s + gone_s) * (1 - part) / part
    return _limited(
        (gone_s + PACE[0] * left_s, gone_s + left_s, gone_s + PACE[1] * left_s), gang.time_limit_s
    )


def remaining(gang: Gang, durations: Durations, elapsed_s: float) -> Expected:
    """What is left of a gang that has run for `elapsed_s`.
    At or past its time limit nothing is left: it is being ended."""
    total, _ = whole(gang, durations, elapsed_s)
    gone_s = max(elapsed_s, 0.0)
    return Expected(
        max(total.low_s - gone_s, 0.0),
        max(total.mid_s - gone_s, 0.0),
        max(total.high_s - gone_s, 0.0),
        total.certain,
    )


def _limited(band: tuple[float, float, float], limit_s: float | None) -> Expected:
    if limit_s is None:
        return Expected(min(band[0], NEVER_S), min(band[1], NEVER_S), min(band[2], NEVER_S))
    return Expected(min(band[0], limit_s), min(band[1], limit_s), limit_s, certain=True)


def _outlived(elapsed_s: float) -> tuple[tuple[float, float, float], float]:
    """In steps of a tenth, so that an answer holds for a while."""
    step = 1.0
    while step <= elapsed_s:
        step *= 1.1
    return (step * 10 / 9, step * 2, step * 10), step


def _history(levels: Sequence[Sequence[float]]) -> History:
    if levels and len(levels[0]) >= ENOUGH:  # each counts fully, and nobody else is asked
        count = len(levels[0])
        weights = ALL_ALIKE[:count] if count <= KEPT else tuple(map(float, range(1, count + 1)))
        return History(tuple(sorted(levels[0])), weights, count)
    weighed: list[tuple[float, float]] = []
    missing = ENOUGH
    known: Counter[float] = Counter()
    for samples in levels:
        # a run is kept under several names, and counts once
        new = list((Counter(samples) - known).elements())
        known.update(new)
        weight = min(missing / len(new), 1.0) if new else 0.0
        weighed += [(seconds, weight) for seconds in new]
        missing -= weight * len(new)
        if missing <= 0:
            break
    if weighed and missing > 0:
        weighed += [(seconds, missing / len(UNKNOWN_S)) for seconds in UNKNOWN_S]
    weighed.sort()
    weights = tuple(accumulate(weight for _, weight in weighed))
    return History(tuple(seconds for seconds, _ in weighed), weights, known.total())

"""Estimates the duration of a gang, with a band, from its time limit and the history of similar runs."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import is_not

import numpy as np
from numpy.typing import NDArray

from hopyard.domain.duration_keys import MAX_DURATIONS, history_keys
from hopyard.domain.gang import Gang

ENOUGH_RUNS = 8.0  # with so many similar runs, less similar runs are not used
# quantiles of the ends of a band; further out than its eight of ten, since runs alike come in bursts
BAND_QUANTILES = (0.06, 0.5, 0.94)
# the running sums of weights of a history in which each run counts fully
EQUAL_WEIGHTS = tuple(map(float, range(1, MAX_DURATIONS + 1)))
# the band without any history, and what fills up one of too few runs; with a time limit, that is expected to
# be used up
UNKNOWN_BAND_S = (60.0, 3600.0, 7 * 86400.0)
PACE_BAND = (
    0.8,
    1.5,
)  # what is left of a run that tells how far it is may take so many times what its pace says
MIN_PACE_PROGRESS = 0.02  # the part that must be done: before that, its start counts too much
MAX_DURATION_S = 10 * 365 * 86400.0  # no band reaches further
MAX_CACHED_HISTORIES = 512  # histories that are remembered
Durations = Mapping[str, Sequence[float]]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DurationEstimate:
    """Seconds: `low_s` <= `mid_s` <= `high_s`; eight of ten are expected between the outer two.

    is_limit: `high_s` is a time limit, at which it is ended: it takes no longer.
    """

    low_s: float
    mid_s: float
    high_s: float
    is_limit: bool = False


def exact_estimate(seconds: float) -> DurationEstimate:
    """Returns an estimate without a band."""
    return DurationEstimate(seconds, seconds, seconds, is_limit=True)


@dataclass(frozen=True, slots=True)
class DurationHistory:
    """Finished runs to predict from, the most telling ones weighing most.

    seconds: sorted. weights: running sums of the weight of each, without a leading 0. runs: how many runs
    tell this; where they are fewer than ENOUGH_RUNS, the rest is what a run takes of which nothing is known.
    """

    seconds: tuple[float, ...]
    weights: tuple[float, ...]
    runs: int = 0
    # of both, once they were asked for
    _arrays: list[Floats] = field(default_factory=list, compare=False, repr=False)

    def band_after(self, elapsed_s: float = 0.0) -> tuple[tuple[float, float, float], float]:
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
            low, mid, high = (self._quantile(before + share * left) for share in BAND_QUANTILES)
            return (low, mid, max(high, mid * (1 + 1 / (1 + left)))), self.seconds[gone]
        if not self.seconds and elapsed_s < UNKNOWN_BAND_S[1]:
            return UNKNOWN_BAND_S, UNKNOWN_BAND_S[1]
        return _outlived_band(elapsed_s)

    def bands_after(self, elapsed_s: Floats) -> Floats:
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
                for share in BAND_QUANTILES[1:]
            )
            known = (left >= 1.0) | (gone == 0)
            found[:, known] = np.array(
                [mid, np.maximum(high, mid * (1 + 1 / (1 + left))), seconds[np.minimum(gone, last)]]
            )[:, known]
        return found

    def _quantile(self, weight: float) -> float:
        return self.seconds[min(bisect_right(self.weights, weight), len(self.seconds) - 1)]


def history_for(gang: Gang, durations: Durations) -> DurationHistory:
    """What is known of runs like this one: first of those that tell most (see `domain.duration_keys`), and
    where these are too few, of the next with what weight is missing."""
    return history_from_levels(most_specific_history(history_keys(gang), durations)[0])


def most_specific_history(
    keys: Sequence[str], durations: Durations
) -> tuple[tuple[Sequence[float], ...], Sequence[str]]:
    """What finished runs took by the first of these keys that together tell enough, and these keys: what is
    known by the others does not matter."""
    found: list[Sequence[float]] = []
    known: Counter[float] = Counter()
    for looked, key in enumerate(keys, 1):
        samples = durations.get(key)
        if samples:
            found.append(samples)
            if len(samples) >= ENOUGH_RUNS or (known := known | Counter(samples)).total() >= ENOUGH_RUNS:
                return tuple(found), keys[:looked]
    return tuple(found), keys


# by the identity of what they were made from, which is kept
_HISTORY_CACHE: dict[tuple[int, ...], tuple[tuple[Sequence[float], ...], DurationHistory]] = {}


def has_known_duration(gang: Gang, durations: Durations) -> bool:
    """Returns whether the duration can be estimated: the gang has a time limit, or the history is long
    enough."""
    return gang.time_limit_s is not None or history_for(gang, durations).runs >= ENOUGH_RUNS


def history_from_levels(levels: tuple[Sequence[float], ...]) -> DurationHistory:
    """Made once for the same tuples: to compare hundreds of numbers to find it again would take as long as
    all that is asked of it."""
    if not all(type(samples) is tuple for samples in levels):
        return _build_history(levels)
    key = tuple(map(id, levels))
    known = _HISTORY_CACHE.get(key)
    if known is None or any(map(is_not, known[0], levels)):
        if len(_HISTORY_CACHE) >= MAX_CACHED_HISTORIES:
            _HISTORY_CACHE.clear()
        known = _HISTORY_CACHE[key] = levels, _build_history(levels)
    return known[1]


def estimate_duration(gang: Gang, durations: Durations) -> DurationEstimate:
    """Estimates the whole duration of a gang that has not started."""
    return estimate_total(gang, durations)[0]


def estimate_total(
    gang: Gang, durations: Durations, elapsed_s: float = 0.0
) -> tuple[DurationEstimate, float]:
    """The whole duration of a gang that has run for `elapsed_s`, and how long, in seconds since its start,
    this answer holds."""
    return estimate_total_from(gang, history_for(gang, durations), elapsed_s)


def estimate_total_from(
    gang: Gang, history: DurationHistory, elapsed_s: float = 0.0
) -> tuple[DurationEstimate, float]:
    """`whole`, where the history is at hand. An attempt of a gang that was served before may go on where that
    ended, or begin anew; one that has outlived its like in all takes long again in both cases."""
    if not history.seconds and gang.time_limit_s is not None:
        return DurationEstimate(
            gang.time_limit_s / 10, gang.time_limit_s, gang.time_limit_s, is_limit=True
        ), MAX_DURATION_S
    gone_s = max(elapsed_s, 0.0)
    (low_s, mid_s, high_s), until_s = history.band_after(gone_s)
    if gang.served_s > 0:
        in_all, in_all_until_s = history.band_after(gang.served_s + gone_s)
        low_s = max(min(low_s, in_all[0] - gang.served_s), 0.0)
        mid_s, high_s = max(mid_s, in_all[1] - gang.served_s), max(high_s, in_all[2] - gang.served_s)
        until_s = min(until_s, in_all_until_s - gang.served_s)
    return _cap_at_limit((low_s, mid_s, high_s), gang.time_limit_s), until_s


def estimate_from_progress(gang: Gang, progress: float, elapsed_s: float) -> DurationEstimate:
    """The whole duration of an attempt that runs for `elapsed_s`, of a gang that has done this part of all it
    has to do, its earlier attempts included: it goes on as fast as so far, with half as long again at the
    most."""
    gone_s = max(elapsed_s, 0.0)
    left_s = (gang.served_s + gone_s) * (1 - progress) / progress
    return _cap_at_limit(
        (gone_s + PACE_BAND[0] * left_s, gone_s + left_s, gone_s + PACE_BAND[1] * left_s), gang.time_limit_s
    )


def estimate_remaining(gang: Gang, durations: Durations, elapsed_s: float) -> DurationEstimate:
    """Estimates the remaining duration of a gang that has run for `elapsed_s`. Returns 0 at or past its time
    limit: the gang is being stopped."""
    total, _ = estimate_total(gang, durations, elapsed_s)
    gone_s = max(elapsed_s, 0.0)
    return DurationEstimate(
        max(total.low_s - gone_s, 0.0),
        max(total.mid_s - gone_s, 0.0),
        max(total.high_s - gone_s, 0.0),
        total.is_limit,
    )


def _cap_at_limit(band: tuple[float, float, float], limit_s: float | None) -> DurationEstimate:
    if limit_s is None:
        return DurationEstimate(
            min(band[0], MAX_DURATION_S), min(band[1], MAX_DURATION_S), min(band[2], MAX_DURATION_S)
        )
    return DurationEstimate(min(band[0], limit_s), min(band[1], limit_s), limit_s, is_limit=True)


def _outlived_band(elapsed_s: float) -> tuple[tuple[float, float, float], float]:
    """In steps of a tenth, so that an answer holds for a while."""
    step = 1.0
    while step <= elapsed_s:
        step *= 1.1
    return (step * 10 / 9, step * 2, step * 10), step


def _build_history(levels: Sequence[Sequence[float]]) -> DurationHistory:
    if levels and len(levels[0]) >= ENOUGH_RUNS:  # each counts fully, and no other runs are used
        count = len(levels[0])
        weights = EQUAL_WEIGHTS[:count] if count <= MAX_DURATIONS else tuple(map(float, range(1, count + 1)))
        return DurationHistory(tuple(sorted(levels[0])), weights, count)
    weighed: list[tuple[float, float]] = []
    missing = ENOUGH_RUNS
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
        weighed += [(seconds, missing / len(UNKNOWN_BAND_S)) for seconds in UNKNOWN_BAND_S]
    weighed.sort()
    weights = tuple(accumulate(weight for _, weight in weighed))
    return DurationHistory(tuple(seconds for seconds, _ in weighed), weights, known.total())

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

ENOUGH_RUNS = 8.0  # with this many similar runs, less similar runs are not used
# quantiles of a band; wider than the eight of ten that it promises, because similar runs come in bursts
BAND_QUANTILES = (0.06, 0.5, 0.94)
# the running sums of weights of a history in which each run counts fully
EQUAL_WEIGHTS = tuple(map(float, range(1, MAX_DURATIONS + 1)))
# the band without any history, also used to complete a history of too few runs; a run with a time limit is
# expected to use it up
UNKNOWN_BAND_S = (60.0, 3600.0, 7 * 86400.0)
# bounds of the remaining time of a run that reports progress, as factors of the time at its pace
PACE_BAND = (0.8, 1.5)
MIN_PACE_PROGRESS = 0.02  # minimum completed part: before that, the startup time distorts the pace
MAX_DURATION_S = 10 * 365 * 86400.0  # no band reaches further
MAX_CACHED_HISTORIES = 512  # number of cached histories
Durations = Mapping[str, Sequence[float]]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DurationEstimate:
    """Seconds: `low_s` <= `mid_s` <= `high_s`; eight of ten runs are expected between the outer two.

    is_limit: `high_s` is a time limit, at which the run is stopped.
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
    """Finished runs to estimate from; the most similar runs have the largest weight.

    seconds: sorted. weights: running sums of the weights, without a leading 0. runs: the number of runs in
    the history. If there are fewer than ENOUGH_RUNS, UNKNOWN_BAND_S gets the remaining weight.
    """

    seconds: tuple[float, ...]
    weights: tuple[float, ...]
    runs: int = 0
    # `seconds` and `weights` as arrays, once they are needed
    _arrays: list[Floats] = field(default_factory=list, compare=False, repr=False)

    def band_after(self, elapsed_s: float = 0.0) -> tuple[tuple[float, float, float], float]:
        """Returns the band of the total duration of a run that has run for `elapsed_s`. Also returns until
        when, in seconds since its start, this band is valid if the history does not change.

        The band is taken from the runs that took longer than that. A run that has outlived nearly all of them
        is estimated like the lifetimes of processes (Harchol-Balter and Downey, Exploiting Process Lifetime
        Distributions, SIGMETRICS'96): half of the processes that ran t seconds run 2t. So the longer it has
        overrun, the longer it is expected to continue.
        """
        shorter_count = bisect_right(self.seconds, elapsed_s)
        shorter_weight = self.weights[shorter_count - 1] if shorter_count else 0.0
        longer_weight = (self.weights[-1] if self.weights else 0.0) - shorter_weight
        if longer_weight >= 1.0 or (longer_weight > 0 and not shorter_count):
            low, mid, high = (
                self._quantile(shorter_weight + share * longer_weight) for share in BAND_QUANTILES
            )
            return (low, mid, max(high, mid * (1 + 1 / (1 + longer_weight)))), self.seconds[shorter_count]
        if not self.seconds and elapsed_s < UNKNOWN_BAND_S[1]:
            return UNKNOWN_BAND_S, UNKNOWN_BAND_S[1]
        return _outlived_band(elapsed_s)

    def bands_after(self, elapsed_s: Floats) -> Floats:
        """Returns the middle and the upper end of `band_after` for many runs at once, and until when these
        are valid, as three rows. NaN for runs that outlived nearly all of the history, and for an empty
        history."""
        bands = np.full((3, len(elapsed_s)), np.nan)
        if self.seconds:
            if not self._arrays:
                self._arrays.extend((np.array(self.seconds), np.array(self.weights)))
            seconds, weights = self._arrays
            last_index = len(seconds) - 1
            shorter_count = np.searchsorted(seconds, elapsed_s, side="right")
            shorter_weight = np.where(shorter_count > 0, weights[np.maximum(shorter_count - 1, 0)], 0.0)
            longer_weight = weights[-1] - shorter_weight
            mid, high = (
                seconds[
                    np.minimum(
                        np.searchsorted(weights, shorter_weight + share * longer_weight, side="right"),
                        last_index,
                    )
                ]
                for share in BAND_QUANTILES[1:]
            )
            is_known = (longer_weight >= 1.0) | (shorter_count == 0)
            bands[:, is_known] = np.array(
                [
                    mid,
                    np.maximum(high, mid * (1 + 1 / (1 + longer_weight))),
                    seconds[np.minimum(shorter_count, last_index)],
                ]
            )[:, is_known]
        return bands

    def _quantile(self, weight: float) -> float:
        return self.seconds[min(bisect_right(self.weights, weight), len(self.seconds) - 1)]


def history_for(gang: Gang, durations: Durations) -> DurationHistory:
    """Returns the history of similar runs: first the most similar ones (see `domain.duration_keys`). If these
    are too few, the next most similar ones get the remaining weight."""
    return history_from_levels(most_specific_history(history_keys(gang), durations)[0])


def most_specific_history(
    keys: Sequence[str], durations: Durations
) -> tuple[tuple[Sequence[float], ...], Sequence[str]]:
    """Returns the durations of the first keys that together have enough runs, and these keys. Other keys do
    not affect the estimate."""
    levels: list[Sequence[float]] = []
    runs: Counter[float] = Counter()
    for key_count, key in enumerate(keys, 1):
        samples = durations.get(key)
        if samples:
            levels.append(samples)
            if len(samples) >= ENOUGH_RUNS or (runs := runs | Counter(samples)).total() >= ENOUGH_RUNS:
                return tuple(levels), keys[:key_count]
    return tuple(levels), keys


# by the identities of the levels, which the entry keeps alive
_HISTORY_CACHE: dict[tuple[int, ...], tuple[tuple[Sequence[float], ...], DurationHistory]] = {}


def has_known_duration(gang: Gang, durations: Durations) -> bool:
    """Returns whether the duration can be estimated: the gang has a time limit, or the history is long
    enough."""
    return gang.time_limit_s is not None or history_for(gang, durations).runs >= ENOUGH_RUNS


def history_from_levels(levels: tuple[Sequence[float], ...]) -> DurationHistory:
    """Returns the history of these levels, cached by identity: comparing hundreds of numbers to find it would
    cost as much as all its uses."""
    if not all(type(samples) is tuple for samples in levels):
        return _build_history(levels)
    key = tuple(map(id, levels))
    cached = _HISTORY_CACHE.get(key)
    if cached is None or any(map(is_not, cached[0], levels)):
        if len(_HISTORY_CACHE) >= MAX_CACHED_HISTORIES:
            _HISTORY_CACHE.clear()
        cached = _HISTORY_CACHE[key] = levels, _build_history(levels)
    return cached[1]


def estimate_duration(gang: Gang, durations: Durations) -> DurationEstimate:
    """Estimates the total duration of a gang that has not started."""
    return estimate_total(gang, durations)[0]


def estimate_total(
    gang: Gang, durations: Durations, elapsed_s: float = 0.0
) -> tuple[DurationEstimate, float]:
    """Returns the total duration of a gang that has run for `elapsed_s`, and until when, in seconds since its
    start, this estimate is valid."""
    return estimate_total_from(gang, history_for(gang, durations), elapsed_s)


def estimate_total_from(
    gang: Gang, history: DurationHistory, elapsed_s: float = 0.0
) -> tuple[DurationEstimate, float]:
    """Computes `estimate_total` from a given history. An attempt of a gang that was served before may
    continue from there, or start from the beginning. If it has outlived similar runs in total, it is expected
    to take long in both cases."""
    if not history.seconds and gang.time_limit_s is not None:
        return DurationEstimate(
            gang.time_limit_s / 10, gang.time_limit_s, gang.time_limit_s, is_limit=True
        ), MAX_DURATION_S
    ran_s = max(elapsed_s, 0.0)
    (low_s, mid_s, high_s), until_s = history.band_after(ran_s)
    if gang.served_s > 0:
        total_band, total_until_s = history.band_after(gang.served_s + ran_s)
        low_s = max(min(low_s, total_band[0] - gang.served_s), 0.0)
        mid_s, high_s = max(mid_s, total_band[1] - gang.served_s), max(high_s, total_band[2] - gang.served_s)
        until_s = min(until_s, total_until_s - gang.served_s)
    return _cap_at_limit((low_s, mid_s, high_s), gang.time_limit_s), until_s


def estimate_from_progress(gang: Gang, progress: float, elapsed_s: float) -> DurationEstimate:
    """Returns the total duration of an attempt that has run for `elapsed_s`, given the completed part of the
    gang's work, earlier attempts included. The gang continues at its pace so far; the remaining time is at
    most half as long again."""
    ran_s = max(elapsed_s, 0.0)
    remaining_s = (gang.served_s + ran_s) * (1 - progress) / progress
    return _cap_at_limit(
        (ran_s + PACE_BAND[0] * remaining_s, ran_s + remaining_s, ran_s + PACE_BAND[1] * remaining_s),
        gang.time_limit_s,
    )


def estimate_remaining(gang: Gang, durations: Durations, elapsed_s: float) -> DurationEstimate:
    """Estimates the remaining duration of a gang that has run for `elapsed_s`. Returns 0 at or past its time
    limit: the gang is being stopped."""
    total, _ = estimate_total(gang, durations, elapsed_s)
    ran_s = max(elapsed_s, 0.0)
    return DurationEstimate(
        max(total.low_s - ran_s, 0.0),
        max(total.mid_s - ran_s, 0.0),
        max(total.high_s - ran_s, 0.0),
        total.is_limit,
    )


def _cap_at_limit(band: tuple[float, float, float], limit_s: float | None) -> DurationEstimate:
    if limit_s is None:
        return DurationEstimate(
            min(band[0], MAX_DURATION_S), min(band[1], MAX_DURATION_S), min(band[2], MAX_DURATION_S)
        )
    return DurationEstimate(min(band[0], limit_s), min(band[1], limit_s), limit_s, is_limit=True)


def _outlived_band(elapsed_s: float) -> tuple[tuple[float, float, float], float]:
    """Uses steps of a tenth, so that an estimate stays valid for a while."""
    step = 1.0
    while step <= elapsed_s:
        step *= 1.1
    return (step * 10 / 9, step * 2, step * 10), step


def _build_history(levels: Sequence[Sequence[float]]) -> DurationHistory:
    if levels and len(levels[0]) >= ENOUGH_RUNS:  # each run counts fully, and no other runs are used
        count = len(levels[0])
        weights = EQUAL_WEIGHTS[:count] if count <= MAX_DURATIONS else tuple(map(float, range(1, count + 1)))
        return DurationHistory(tuple(sorted(levels[0])), weights, count)
    samples_with_weight: list[tuple[float, float]] = []
    missing = ENOUGH_RUNS
    counted: Counter[float] = Counter()
    for samples in levels:
        # a run is recorded under several keys, and counts once
        uncounted = list((Counter(samples) - counted).elements())
        counted.update(uncounted)
        weight = min(missing / len(uncounted), 1.0) if uncounted else 0.0
        samples_with_weight += [(seconds, weight) for seconds in uncounted]
        missing -= weight * len(uncounted)
        if missing <= 0:
            break
    if samples_with_weight and missing > 0:
        samples_with_weight += [(seconds, missing / len(UNKNOWN_BAND_S)) for seconds in UNKNOWN_BAND_S]
    samples_with_weight.sort()
    weights = tuple(accumulate(weight for _, weight in samples_with_weight))
    return DurationHistory(tuple(seconds for seconds, _ in samples_with_weight), weights, counted.total())

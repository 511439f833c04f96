"""Downsamples a curve for display: per bucket of the x axis the minimum, maximum, first, last, mean and count
of its points. Only numpy: neither files nor clocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]


class Buckets:
    """The buckets that have points, in order of x; each column is computed at its first use.

    positions: of the points, in order of x. starts: the first place of each bucket among them. All columns
    have equal lengths.
    """

    def __init__(self, values: Floats, positions: Positions, starts: Positions) -> None:
        self._positions, self._starts = positions, starts
        self._selected: Floats = values[positions]
        self._is_nan = np.isnan(self._selected)
        self._has_nan = bool(self._is_nan.any())
        self.counts: Positions = np.diff(starts, append=len(positions))

    @property
    def first(self) -> Positions:
        """The position of the first point."""
        return self._positions[self._starts]

    @property
    def last(self) -> Positions:
        """The position of the last point."""
        last: Positions = self._positions[self._starts + self.counts - 1]
        return last

    @cached_property
    def lowest(self) -> Floats:
        """The minimum without NaN values; NaN for a bucket of only NaN."""
        minimum = np.fmin if self._has_nan else np.minimum
        return minimum.reduceat(self._selected, self._starts)

    @cached_property
    def highest(self) -> Floats:
        """The maximum, likewise."""
        maximum = np.fmax if self._has_nan else np.maximum
        return maximum.reduceat(self._selected, self._starts)

    @cached_property
    def min_at(self) -> Positions:
        """The position of the first point with the minimum; the first point of a bucket of only NaN."""
        return self._positions[self._first_places(self.lowest)]

    @cached_property
    def max_at(self) -> Positions:
        """The position of the first point with the maximum, likewise."""
        return self._positions[self._first_places(self.highest)]

    @property
    def nan_counts(self) -> Positions:
        """The number of NaN values."""
        if not self._has_nan:
            return np.zeros_like(self.counts)
        return np.add.reduceat(self._is_nan, self._starts, dtype=np.intp)

    @property
    def means(self) -> Floats:
        """The mean without NaN values; NaN for a bucket of only NaN."""
        numbers = np.where(self._is_nan, 0.0, self._selected) if self._has_nan else self._selected
        counts, starts = self.counts - self.nan_counts, self._starts
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            means = np.add.reduceat(numbers, starts) / counts
            if not np.isfinite(means).all():
                overflowed = ~np.isfinite(means) & np.isfinite(self.lowest) & np.isfinite(self.highest)
                parts = np.add.reduceat(numbers / np.repeat(counts, self.counts), starts)
                means = np.where(overflowed, parts, means)
        # rounding may exceed them
        bounded: Floats = np.minimum(np.maximum(means, self.lowest), self.highest)
        return bounded

    def _first_places(self, extremes: Floats) -> Positions:
        equal = np.flatnonzero(self._selected == np.repeat(extremes, self.counts))
        nearest = np.searchsorted(equal, self._starts)  # the first equal value from each begin on
        places = np.append(equal, len(self._selected))[nearest]
        return np.where(places < self._starts + self.counts, places, self._starts)


def points_in_range(x: npt.NDArray[Any], begin: float | None, end: float | None) -> Positions:
    """Returns the positions of the points with begin <= x <= end, in order of x; those of equal x keep their
    order. None is no bound. Points without a finite x are omitted."""
    if _is_sorted(x) and (len(x) == 0 or (np.isfinite(x[0]) and np.isfinite(x[-1]))):
        low = 0 if begin is None else int(np.searchsorted(x, begin, side="left"))
        high = len(x) if end is None else int(np.searchsorted(x, end, side="right"))
        return np.arange(low, max(low, high))
    inside = np.isfinite(x)
    if begin is not None:
        inside &= x >= begin
    if end is not None:
        inside &= x <= end
    positions = np.flatnonzero(inside)
    selected = x[positions]
    return positions if _is_sorted(selected) else positions[np.argsort(selected, kind="stable")]


def _is_sorted(x: npt.NDArray[Any]) -> bool:
    return bool((x[1:] >= x[:-1]).all())  # false with a NaN


def x_bounds(axes: Iterable[npt.NDArray[Any]]) -> tuple[float, float] | None:
    """Returns the lowest and the highest value of these, in which each is sorted; None without any."""
    ends = [(float(x[0]), float(x[-1])) for x in axes if len(x)]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None


def make_buckets(
    x: npt.NDArray[Any], values: Floats, positions: Positions, bounds: tuple[float, float], count: int
) -> Buckets:
    """Puts points into at most `count` buckets of equal width between the bounds.

    positions: of at least one point, in order of x, all of them within the bounds. Runs with the same bounds
    have the same buckets.
    """
    return Buckets(values, positions, _bucket_starts(x[positions], bounds, count))


def step_function(steps: npt.NDArray[np.int64], values: Floats, at: npt.NDArray[np.int64]) -> Floats:
    """Returns, for each step in `at`, the newest value at this step or before; NaN before the first step.

    Takes another metric as x axis: metrics of one step are logged together, or one of them less often.
    """
    order = np.argsort(steps, kind="stable")  # the newest of equal steps is last
    places = np.searchsorted(steps[order], at, side="right")
    found = np.full(len(at), math.nan)
    found[places > 0] = values[order][places[places > 0] - 1]
    return found


def _bucket_starts(x: npt.NDArray[Any], bounds: tuple[float, float], count: int) -> Positions:
    """Returns the first place of each bucket that has points. x is sorted."""
    low, high = bounds
    fractions = np.arange(1, count) / count
    edges = low * (1 - fractions) + high * fractions  # `high - low` may overflow
    edges = np.maximum.accumulate(edges)  # rounding may exceed the next one
    places = np.concatenate(([0], np.searchsorted(x, edges, side="left"), [len(x)]))
    return places[:-1][places[:-1] < places[1:]]


def column_values(values: npt.NDArray[Any]) -> list[Any]:
    """Returns the values for JSON: those that are not finite are the texts of `domain.metric_values`."""
    listed: list[Any] = values.tolist()
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        texts: Mapping[float, str] = {math.inf: "Infinity", -math.inf: "-Infinity"}
        return [texts.get(value, value) if value == value else "NaN" for value in listed]
    return listed

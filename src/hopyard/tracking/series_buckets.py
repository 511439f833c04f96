"""Downsamples a curve for display: per bucket of the x axis the minimum, maximum, first, last, mean and count
of its points. Only numpy: neither files nor clocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets that have points, in order of x. All arrays have equal lengths.

    first, last, min_at, max_at: positions of points in the series. min_at and max_at are the first points
    with the minimum and maximum of their bucket; a bucket of only NaN has its first point there. means:
    without NaN values, NaN for a bucket of only NaN. counts: all points. nan_counts: the NaN values among
    them.
    """

    first: Positions
    last: Positions
    min_at: Positions
    max_at: Positions
    means: Floats
    counts: Positions
    nan_counts: Positions


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
    starts = _bucket_starts(x[positions], bounds, count)
    counts = np.diff(starts, append=len(positions))
    selected = values[positions]
    is_nan = np.isnan(selected)
    nan_counts = np.add.reduceat(is_nan, starts, dtype=np.intp) if is_nan.any() else np.zeros_like(counts)
    lowest, highest = np.fmin.reduceat(selected, starts), np.fmax.reduceat(selected, starts)
    return Buckets(
        first=positions[starts],
        last=positions[starts + counts - 1],
        min_at=positions[_first_places(selected, lowest, starts, counts)],
        max_at=positions[_first_places(selected, highest, starts, counts)],
        means=_means(np.where(is_nan, 0.0, selected), starts, counts - nan_counts, lowest, highest),
        counts=counts,
        nan_counts=nan_counts,
    )


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
    places = np.concatenate(([0], np.searchsorted(x, edges, side="left"), [len(x)]))
    return places[:-1][places[:-1] < places[1:]]


def _first_places(selected: Floats, extremes: Floats, starts: Positions, counts: Positions) -> Positions:
    """Returns the first place in each bucket of its extreme value."""
    equal = np.flatnonzero(selected == np.repeat(extremes, counts))
    nearest = np.searchsorted(equal, starts)  # the first equal value at the begin of each bucket or later
    places = np.append(equal, len(selected))[nearest]
    return np.where(places < starts + counts, places, starts)


def _means(numbers: Floats, starts: Positions, counts: Positions, lowest: Floats, highest: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        means = np.add.reduceat(numbers, starts) / counts
        overflowed = ~np.isfinite(means) & np.isfinite(lowest) & np.isfinite(highest)
        if overflowed.any():
            lengths = np.diff(starts, append=len(numbers))
            means = np.where(overflowed, np.add.reduceat(numbers / np.repeat(counts, lengths), starts), means)
    return np.clip(means, lowest, highest)  # rounding may exceed them


def column_values(values: npt.NDArray[Any]) -> list[Any]:
    """Returns the values for JSON: those that are not finite are the texts of `domain.metric_values`."""
    listed: list[Any] = values.tolist()
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        texts: Mapping[float, str] = {math.inf: "Infinity", -math.inf: "-Infinity"}
        return [texts.get(value, value) if value == value else "NaN" for value in listed]
    return listed

"""Counts values in bins of equal width."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from hopyard.backports import pairwise, zip
from hopyard.domain.metric_values import encode_value
from hopyard.errors import SpecError
from hopyard.sdk.array_values import flatten, is_array, to_numpy

MAX_BINS = 512


def count_values(data: Any, bins: int) -> dict[str, Any]:
    """Returns edges and counts of the finite values, their number, minimum, maximum and mean, and how many
    values are not finite."""
    if not 1 <= bins <= MAX_BINS:
        raise SpecError(f"{bins} bins", hints=(f"a histogram has 1 to {MAX_BINS} bins",))
    if is_array(data):
        return _count_array(to_numpy(data), bins)
    if any(map(is_array, data)):
        return _count_array(_concatenate(data), bins)
    values = [float(value) for value in flatten(list(data))]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return _result([0.0, 1.0], [0], len(values), 0.0, 0.0, 0.0)
    low, high = _range(min(finite), max(finite))
    counts, width = [0] * bins, (high - low) / bins
    for value in finite:
        counts[min(int((value - low) / width), bins - 1)] += 1
    edges = [low + width * number for number in range(bins)] + [high]
    mean = math.fsum(finite) / len(finite)
    return _result(edges, counts, len(values) - len(finite), min(finite), max(finite), mean)


def given_counts(counts: Iterable[Any], edges: Iterable[Any], *, max_bins: int = MAX_BINS) -> dict[str, Any]:
    """Returns the histogram of counts that were made elsewhere. Raises SpecError unless the edges ascend and
    are one more than the counts."""
    counts, edges = [float(count) for count in counts], [float(edge) for edge in edges]
    if len(edges) != len(counts) + 1 or not counts or len(counts) > max_bins:
        raise SpecError(
            f"a histogram of {len(counts)} counts and {len(edges)} edges",
            hints=(f"give 1 to {max_bins} counts, and one more edge",),
        )
    if any(not low <= high for low, high in pairwise(edges)):
        raise SpecError("the edges of a histogram are not in ascending order")
    return _result(edges, counts, 0, edges[0], edges[-1], _mean(counts, edges))


def _mean(counts: Sequence[float], edges: Sequence[float]) -> float:
    """Returns the mean of values in the middles of their bins; NaN where it is not defined."""
    try:
        total = math.fsum(counts) or 1.0
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        return math.fsum(count / total * middle for count, middle in zip(counts, middles, strict=True))
    except (OverflowError, ValueError):  # of infinite edges
        return math.nan


def _count_array(values: Any, bins: int) -> dict[str, Any]:
    import numpy

    values = values.ravel().astype("float64")
    finite = values[numpy.isfinite(values)]
    if not finite.size:
        return _result([0.0, 1.0], [0], int(values.size), 0.0, 0.0, 0.0)
    low, high = float(finite.min()), float(finite.max())
    counts, edges = numpy.histogram(finite, bins=bins, range=_range(low, high))
    return _result(
        edges.tolist(), counts.tolist(), int(values.size - finite.size), low, high, float(finite.mean())
    )


def _concatenate(data: Iterable[Any]) -> Any:
    import numpy

    return numpy.concatenate([to_numpy(part).ravel() for part in data])


def _range(low: float, high: float) -> tuple[float, float]:
    """Returns the range of the bins. Equal values get bins around them, as in NumPy."""
    if low < high and math.isfinite(high - low):
        return low, high
    if low < high:
        raise SpecError(f"the values from {low:g} to {high:g} are too far apart for a histogram")
    spread = max(abs(low) * 1e-6, 0.5)
    return low - spread, high + spread


def _result(
    edges: list[float], counts: list[Any], not_finite: int, low: float, high: float, mean: float
) -> dict[str, Any]:
    return {
        "edges": [encode_value(edge) for edge in edges],
        "counts": counts,
        "count": sum(counts),
        "not_finite": not_finite,
        "min": encode_value(low),
        "max": encode_value(high),
        "mean": encode_value(mean),
    }

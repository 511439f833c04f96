"""Downsampling of series for display: chooses which points remain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def extreme_positions(values: Sequence[float], max_points: int) -> Sequence[int]:
    """Returns the positions of at most `max_points` values, ascending. They are the first, the last, and the
    minimum and maximum of each of `max_points` / 2 equal buckets. Returns all positions if there are no more,
    or if `max_points` is below 1. NaN values within a bucket are ignored."""
    count = len(values)
    if count <= max_points or max_points < 1:
        return range(count)
    positions = {0, count - 1} if max_points > 1 else {count - 1}
    buckets = max(0, (max_points - 2) // 2)
    for bucket in range(buckets):
        begin, end = bucket * count // buckets, (bucket + 1) * count // buckets
        numbers = [position for position in range(begin, end) if values[position] == values[position]]
        if numbers:
            positions |= {min(numbers, key=values.__getitem__), max(numbers, key=values.__getitem__)}
    return sorted(positions)


def peak_positions(values: Sequence[int], max_points: int) -> Sequence[int]:
    """Returns the positions of the maximum of each of `max_points` equal buckets, ascending. Returns all
    positions if there are no more."""
    count = len(values)
    if count <= max_points:
        return range(count)
    bounds = [index * count // max_points for index in range(max_points + 1)]
    return [max(range(begin, end), key=values.__getitem__) for begin, end in pairwise(bounds)]

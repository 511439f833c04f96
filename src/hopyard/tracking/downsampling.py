"""Downsampling of series for display: which points stay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def extreme_positions(values: Sequence[float], max_points: int) -> Sequence[int]:
    """Returns the positions of at most `max_points` values, ascending: the first, the last, and the least and
    largest of each of `max_points` / 2 equal stretches. Returns all positions if there are no more, or if
    `max_points` is below 1. Skips NaN inside a stretch."""
    count = len(values)
    if count <= max_points or max_points < 1:
        return range(count)
    kept = {0, count - 1} if max_points > 1 else {count - 1}
    buckets = max(0, (max_points - 2) // 2)
    for bucket in range(buckets):
        begin, end = bucket * count // buckets, (bucket + 1) * count // buckets
        numbers = [at for at in range(begin, end) if values[at] == values[at]]
        if numbers:
            kept |= {min(numbers, key=values.__getitem__), max(numbers, key=values.__getitem__)}
    return sorted(kept)


def peak_positions(values: Sequence[int], max_points: int) -> Sequence[int]:
    """Returns the positions of the largest value of each of `max_points` equal stretches, ascending. Returns
    all positions if there are no more."""
    count = len(values)
    if count <= max_points:
        return range(count)
    edges = [at * count // max_points for at in range(max_points + 1)]
    return [max(range(begin, end), key=values.__getitem__) for begin, end in pairwise(edges)]

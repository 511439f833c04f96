"""The laws of downsampling: no extreme is lost, counts add up, and a plain loop gives the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from hopyard.tracking.series_buckets import make_buckets, points_in_range, step_function, x_bounds

POINTS = st.lists(
    st.tuples(st.floats(allow_subnormal=False) | st.integers(-50, 50).map(float), st.floats(width=64)),
    max_size=80,
)


def numbers(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


@given(POINTS, st.none() | st.floats(-60, 60), st.none() | st.floats(-60, 60))
def test_range_selects_the_points_within_it_in_order_of_x(
    points: list[tuple[float, float]], begin: float | None, end: float | None
) -> None:
    x = np.array([each for each, _ in points], dtype=np.float64)
    expected = [
        at
        for at, (each, _) in enumerate(points)
        if math.isfinite(each) and (begin is None or each >= begin) and (end is None or each <= end)
    ]
    assert points_in_range(x, begin, end).tolist() == sorted(expected, key=lambda at: points[at][0])


@given(POINTS, st.integers(1, 20))
@example([(-1.7e308, 1.0), (1.7e308, 2.0), (0.0, math.nan)], 2)
@example([(0.0, 1.7e308), (0.0, 1.7e308)], 1)
def test_buckets_are_those_of_a_plain_loop(points: list[tuple[float, float]], count: int) -> None:
    x = np.array([each for each, _ in points], dtype=np.float64)
    values = np.array([value for _, value in points], dtype=np.float64)
    positions = points_in_range(x, None, None)
    bounds = x_bounds([x[positions]])
    assert (bounds is None) is (len(positions) == 0)
    if bounds is None:
        return
    found = make_buckets(x, values, positions, bounds, count)
    low, high = bounds
    edges = [low * (1 - n / count) + high * (n / count) for n in range(1, count)]
    plain: dict[int, list[int]] = {}
    for at in positions.tolist():
        plain.setdefault(sum(edge <= x[at] for edge in edges), []).append(at)
    buckets = [plain[number] for number in sorted(plain)]

    assert len(found.counts) == len(buckets) <= count
    assert found.counts.tolist() == [len(bucket) for bucket in buckets]
    assert found.first.tolist() == [bucket[0] for bucket in buckets]
    assert found.last.tolist() == [bucket[-1] for bucket in buckets]
    for number, bucket in enumerate(buckets):
        real = numbers(values[bucket].tolist())
        assert found.nan_counts[number] == len(bucket) - len(real)
        lowest, highest = found.min_at[number], found.max_at[number]
        if not real:
            assert lowest == highest == bucket[0]
            assert math.isnan(found.means[number])
            continue
        assert lowest == next(at for at in bucket if values[at] == min(real))
        assert highest == next(at for at in bucket if values[at] == max(real))
        mean = found.means[number]
        if all(map(math.isfinite, real)):
            assert min(real) <= mean <= max(real)
            scale = max(map(abs, real))
            assert abs(mean - math.fsum(value / len(real) for value in real)) <= 1e-12 * scale
        else:
            assert same(mean, sum(real) / len(real))


@given(POINTS, st.integers(1, 20))
def test_no_extreme_is_lost(points: list[tuple[float, float]], count: int) -> None:
    x = np.array([each for each, _ in points], dtype=np.float64)
    values = np.array([value for _, value in points], dtype=np.float64)
    positions = points_in_range(x, None, None)
    bounds = x_bounds([x[positions]])
    real = numbers(values[positions].tolist())
    if bounds is None or not real:
        return
    found = make_buckets(x, values, positions, bounds, count)
    assert np.nanmin(values[found.min_at]) == min(real)
    assert np.nanmax(values[found.max_at]) == max(real)
    assert found.counts.sum() == len(positions)


STEPS = st.lists(st.tuples(st.integers(0, 20), st.floats(-9, 9)), max_size=20)


@given(STEPS, st.lists(st.integers(-2, 25), max_size=20))
def test_other_metric_as_axis_has_its_newest_value_at_the_step_or_before(
    logged: list[tuple[int, float]], at: list[int]
) -> None:
    steps = np.array([step for step, _ in logged], dtype=np.int64)
    values = np.array([value for _, value in logged], dtype=np.float64)
    found: list[Any] = step_function(steps, values, np.array(at, dtype=np.int64)).tolist()
    for step, value in zip(at, found, strict=True):
        earlier = [pair for pair in logged if pair[0] <= step]
        newest = max((pair[0] for pair in earlier), default=None)
        expected = [each for at_step, each in earlier if at_step == newest]
        assert same(value, expected[-1] if expected else math.nan)

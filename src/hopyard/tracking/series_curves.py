"""Chooses and downsamples the points of curves that a client draws together, over the same buckets of x."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hopyard.tracking.series_buckets import (
    Positions,
    column_values,
    make_buckets,
    points_in_range,
    step_function,
    x_bounds,
)
from hopyard.tracking.series_columns import Columns
from hopyard.tracking.series_cursor import SeriesId, SeriesMark

POINT_COLUMNS = ("steps", "times")  # of each point, or of the first point of a bucket
BUCKET_COLUMNS = (
    *("x_last", "first", "last", "min", "max", "mean", "counts"),
    *("min_steps", "max_steps", "min_x", "max_x", "nan_counts"),
)
AxisKind = Literal["step", "time", "elapsed", "metric"]


@dataclass(frozen=True, slots=True)
class SeriesCurve:
    """A series and its x axis. origin: the unix time of x = 0 on the axis `elapsed`. x_series: the metric on
    the x axis; None if the run has none of this name."""

    id: SeriesId
    columns: Columns
    origin: float = 0.0
    x_series: Columns | None = None


@dataclass(frozen=True, slots=True)
class CurveRequest:
    """Which points of curves are returned, and which columns. begin, end: the range of x, None is open.
    buckets: the maximum number of points or buckets of each curve."""

    axis: AxisKind
    begin: float | None
    end: float | None
    buckets: int
    columns: Collection[str]


@dataclass(frozen=True, slots=True)
class CurveSection:
    """The points of a curve in the range, by column. count: their number. total: all points of the series.
    is_exact: each point is returned. is_reset: replaces all points that the client has."""

    id: SeriesId
    total: int
    count: int
    is_exact: bool
    is_sampled: bool
    is_reset: bool
    columns: Mapping[str, list[Any]]


def select_curves(
    curves: Sequence[SeriesCurve], request: CurveRequest, since: Mapping[SeriesId, SeriesMark] | None
) -> tuple[list[CurveSection], dict[SeriesId, SeriesMark]]:
    """Returns the points of curves in the range, and the marks for the next request.

    since: the marks of the last answer; only later points are returned, and only of curves that have changed.
    A curve of which earlier points changed is returned in full, as are all curves over another metric.
    """
    marks = {curve.id: _mark(curve, request.axis) for curve in curves}
    chosen: list[tuple[SeriesCurve, bool, npt.NDArray[Any], Positions]] = []
    for curve in curves:
        skipped, known = 0, None if since is None else since.get(curve.id)
        if known is not None:
            if known == marks[curve.id]:
                continue
            if request.axis != "metric" and _begins_with(curve.columns, known):
                skipped = known.length
        x = _x_values(curve, request.axis)
        positions = points_in_range(x[skipped:], request.begin, request.end) + skipped
        chosen.append((curve, skipped == 0, x, positions))
    found = x_bounds([x[positions[[0, -1]]] for _, _, x, positions in chosen if len(positions)])
    low, high = found or (0.0, 0.0)
    bounds = low if request.begin is None else request.begin, high if request.end is None else request.end
    parts = [
        _part(curve, x, positions, bounds, request, is_reset=is_reset)
        for curve, is_reset, x, positions in chosen
    ]
    removed = [] if since is None else sorted(since.keys() - marks.keys(), key=str)
    empty: Mapping[str, list[Any]] = {"x": [], "values": []}
    parts += [
        CurveSection(id_, 0, 0, is_exact=True, is_sampled=False, is_reset=True, columns=empty)
        for id_ in removed
    ]
    return parts, marks


def _begins_with(columns: Columns, known: SeriesMark) -> bool:
    return 0 <= known.length <= len(columns) and columns.checksum(known.length) == known.checksum


def _mark(curve: SeriesCurve, axis: AxisKind) -> SeriesMark:
    length = len(curve.columns)
    checksum = curve.columns.checksum(length)
    if axis == "metric" and curve.x_series is not None:
        x_checksum = curve.x_series.checksum(len(curve.x_series))
        checksum = zlib.crc32(x_checksum.to_bytes(4, "little"), checksum)
    return SeriesMark(length, checksum)


def _x_values(curve: SeriesCurve, axis: AxisKind) -> npt.NDArray[Any]:
    columns = curve.columns
    if axis == "step":
        return columns.steps
    if axis == "time":
        return columns.times
    if axis == "elapsed":
        return columns.times - curve.origin
    if curve.x_series is None:
        return np.full(len(columns), np.nan)
    return step_function(curve.x_series.steps, curve.x_series.values, columns.steps)


def _part(
    curve: SeriesCurve,
    x: npt.NDArray[Any],
    positions: Positions,
    bounds: tuple[float, float],
    request: CurveRequest,
    *,
    is_reset: bool,
) -> CurveSection:
    columns, values = curve.columns, curve.columns.values
    is_exact = len(positions) <= request.buckets
    computed: dict[str, Callable[[], npt.NDArray[Any]]]
    if is_exact:
        first = positions
        computed = {"values": lambda: values[positions]}
    else:
        buckets = make_buckets(x, values, positions, bounds, request.buckets)
        first = buckets.first
        computed = {
            "x_last": lambda: x[buckets.last],
            "first": lambda: values[first],
            "last": lambda: values[buckets.last],
            "min": lambda: buckets.lowest,
            "max": lambda: buckets.highest,
            "mean": lambda: buckets.means,
            "counts": lambda: buckets.counts,
            "min_steps": lambda: columns.steps[buckets.min_at],
            "max_steps": lambda: columns.steps[buckets.max_at],
            "min_x": lambda: x[buckets.min_at],
            "max_x": lambda: x[buckets.max_at],
            "nan_counts": lambda: buckets.nan_counts,
        }
    computed |= {"steps": lambda: columns.steps[first], "times": lambda: columns.times[first]}
    listed = {
        name: compute().tolist() if name == "times" else column_values(compute())
        for name, compute in computed.items()
        if name == "values" or name in request.columns
    }
    return CurveSection(
        curve.id,
        columns.count,
        len(positions),
        is_exact=is_exact,
        is_sampled=columns.is_downsampled,
        is_reset=is_reset,
        columns={"x": x[first].tolist(), **listed},
    )

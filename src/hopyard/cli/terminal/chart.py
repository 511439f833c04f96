"""Draws curves with characters. Pure: numbers in, lines of text out.

Marks distinguish curves, besides colours. A single curve is drawn finer, in Braille dots, if the terminal has
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hopyard.domain.axis_ticks import choose_ticks

MARKS = "ox+*#@%&"
COLOURS = ("cyan", "yellow", "green", "red")
_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # bit of the dot in column x, row y of a cell
_MIN_WIDTH, _MIN_HEIGHT = 24, 4
_MIN_DISTANCE = 1e-290  # of two values that are drawn apart: the distance of ticks is a normal number
_MAX_VALUE = 1e307  # larger values are clamped: distances and ticks must be finite


AXIS_MARKS = {True: "▲", False: "^"}  # with and without Unicode


@dataclass(frozen=True, slots=True)
class Curve:
    """Points in order of x. A y that is not a finite number breaks the line."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True, slots=True)
class ChartCell:
    """One character of the drawing. curve: the index of the drawn curve, -1 for none."""

    text: str
    curve: int = -1


def draw_chart(
    curves: Sequence[Curve], *, width: int, height: int, unicode: bool, marks: Sequence[float] = ()
) -> list[list[ChartCell]]:
    """Returns the rows of a picture of `width` columns and `height` rows, both axes included. Without a
    finite point there are no rows. marks: values of x that are marked on the axis."""
    curves = [replace(curve, ys=[clamp(y) for y in curve.ys]) for curve in curves]
    points = [
        [(x, y) for x, y in zip(source.xs, source.ys, strict=True) if math.isfinite(y)] for source in curves
    ]
    flat = [point for curve_points in points for point in curve_points]
    if not flat:
        return []
    # also those of points that are not drawn: a curve that ends in NaN does not reach the right edge
    xs = _value_range([x for curve in curves for x in curve.xs])
    ys = _value_range([y for _, y in flat])
    rows = max(_MIN_HEIGHT, height - 2)
    ticks = {
        round((1 - (value - ys[0]) / (ys[1] - ys[0])) * (rows - 1)): format_tick(value, ys)
        for value in choose_ticks(*ys, max(2, rows // 2))
    }
    margin = max(map(len, ticks.values()))
    columns = max(_MIN_WIDTH, width) - margin - 2
    fine = unicode and len(curves) == 1 and len(points[0]) > 1
    grid = (
        _draw_braille(curves[0], xs, ys, columns, rows)
        if fine
        else _draw_marks(curves, xs, ys, columns, rows)
    )
    bar, corner, flat_bar, tick = ("│", "└", "─", "┤") if unicode else ("|", "+", "-", "+")
    picture = [
        [ChartCell(f"{ticks.get(y, ''):>{margin}} {tick if y in ticks else bar}"), *row]
        for y, row in enumerate(grid)
    ]
    axis = [flat_bar] * columns
    for x in marks:
        if xs[0] <= x <= xs[1]:
            axis[round((x - xs[0]) / (xs[1] - xs[0]) * (columns - 1))] = AXIS_MARKS[unicode]
    picture.append([ChartCell(" " * margin + " " + corner + "".join(axis))])
    picture.append(
        [
            ChartCell(
                " " * (margin + 2)
                + _x_labels(xs, columns, integers_only=all(float(x).is_integer() for x, _ in flat))
            )
        ]
    )
    return picture


def clamp(value: float) -> float:
    """Limits a finite value, so that the distance of two of them is finite."""
    return max(-_MAX_VALUE, min(value, _MAX_VALUE)) if math.isfinite(value) else value


def format_tick(value: float, span: tuple[float, float]) -> str:
    """A tick's label with as many digits as tell it from its neighbours."""
    if abs(value) < (span[1] - span[0]) * 1e-9:
        return "0"
    digits = max(1, math.ceil(math.log10(max(abs(span[0]), abs(span[1])) / (span[1] - span[0]))) + 3)
    return f"{value:.{min(digits, 10)}g}"


def _value_range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high - low <= max(abs(high) * 1e-12, _MIN_DISTANCE):
        pad = max(abs(high) * 0.1, _MIN_DISTANCE) if high else 1.0
        return low - pad, high + pad
    return low, high


def _x_labels(xs: tuple[float, float], columns: int, *, integers_only: bool) -> str:
    line = [" "] * columns
    end = -1
    for value in choose_ticks(*xs, max(2, columns // 14), integers_only=integers_only):
        text = format_tick(value, xs)
        start = round((value - xs[0]) / (xs[1] - xs[0]) * (columns - 1)) - len(text) // 2
        start = max(0, min(start, columns - len(text)))
        if start > end:
            line[start : start + len(text)] = text
            end = start + len(text)
    return "".join(line).rstrip()


def _draw_braille(
    curve: Curve, xs: tuple[float, float], ys: tuple[float, float], columns: int, rows: int
) -> list[list[ChartCell]]:
    bits = [[0] * columns for _ in range(rows)]
    for x, y in _to_pixels(curve, xs, ys, columns * 2, rows * 4):
        bits[y // 4][x // 2] |= _BRAILLE[x % 2][y % 4]
    return [[ChartCell(chr(0x2800 + b), 0) if b else ChartCell(" ") for b in row] for row in bits]


def _draw_marks(
    curves: Sequence[Curve], xs: tuple[float, float], ys: tuple[float, float], columns: int, rows: int
) -> list[list[ChartCell]]:
    grid = [[ChartCell(" ")] * columns for _ in range(rows)]
    for index, curve in enumerate(curves):
        for x, y in _to_pixels(curve, xs, ys, columns, rows):
            grid[y][x] = ChartCell(MARKS[index % len(MARKS)], index)
    return grid


def _to_pixels(
    curve: Curve, xs: tuple[float, float], ys: tuple[float, float], width: int, height: int
) -> Iterator[tuple[int, int]]:
    previous: tuple[int, int] | None = None
    for x, y in zip(curve.xs, curve.ys, strict=True):
        if not math.isfinite(y):
            previous = None
            continue
        pixel = (
            round((x - xs[0]) / (xs[1] - xs[0]) * (width - 1)),
            round((1 - (y - ys[0]) / (ys[1] - ys[0])) * (height - 1)),
        )
        yield from _line_points(previous or pixel, pixel)
        previous = pixel


def _line_points(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    for i in range(steps + 1):
        yield (
            start[0] + round((end[0] - start[0]) * i / steps),
            start[1] + round((end[1] - start[1]) * i / steps),
        )

"""Pictures as SVG. Their colours are classes of the page, which are also those of its dark theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from hopyard.server.report_export.axes import PlotAxis, fit_axis, format_number

COLOURS = 10
_DASHES = ("", "6 3", "2 2", "8 3 2 3")
_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 12, 40


@dataclass(frozen=True, slots=True)
class PlotCurve:
    """colour: counts from 0. low, high: a band around the curve. Points that are not finite are gaps."""

    label: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def draw_curves(
    curves: Sequence[PlotCurve], x_axis: PlotAxis, *, label: str, x_label: str, is_log_y: bool
) -> str:
    """Returns curves over a common x axis; "" without points."""
    values = [value for curve in curves for row in (curve.y, curve.low, curve.high) for value in row]
    y_axis = fit_axis(values, is_log=is_log_y)
    if y_axis is None:
        return ""
    parts = [_grid(x_axis, y_axis, x_label)]
    for curve in curves:
        kind = f"k{curve.colour % COLOURS}"
        if curve.low:
            parts += [
                f'<path class="band {kind}" d="{area}"/>' for area in _bands(curve, x_axis, y_axis) if area
            ]
        points = list(_points(curve.x, curve.y, x_axis, y_axis))
        title = f"<title>{escape(curve.label)}</title>"
        parts.append(f'<path {_line_style(curve.colour)} d="{_path(points)}">{title}</path>')
        if sum(point is not None for point in points) == 1:
            x, y = next(point for point in points if point is not None)
            parts.append(f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="3">{title}</circle>')
    return _svg("".join(parts), label)


def draw_legend(entries: Sequence[tuple[str, int]]) -> str:
    """Returns the labels with the colours and dashes of their lines."""
    items = [
        '<li><svg width="22" height="8" aria-hidden="true">'
        f'<path {_line_style(colour)} d="M0 4H22"/></svg>{escape(label)}</li>'
        for label, colour in entries
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def draw_scatter(
    points: Sequence[tuple[str, float, float]], *, label: str, x_label: str, y_label: str
) -> str:
    """Returns a point for each label, x and y; "" without points."""
    x_axis, y_axis = fit_axis([x for _, x, _ in points]), fit_axis([y for _, _, y in points])
    if x_axis is None or y_axis is None:
        return ""
    parts = [_grid(x_axis, y_axis, x_label)]
    for number, (name, x, y) in enumerate(points):
        place = _place(x, y, x_axis, y_axis, inset=10)
        if place is not None:
            text = f"{name}: {x_label} {format_number(x)}, {y_label} {format_number(y)}"
            parts.append(
                f'<circle class="dot k{number % COLOURS}" cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="5">'
                f"<title>{escape(text)}</title></circle>"
            )
    return _svg("".join(parts), label)


def draw_parallel(
    names: Sequence[str],
    lines: Sequence[tuple[str, Sequence[float | None]]],
    axes: Sequence[PlotAxis],
    label: str,
) -> str:
    """Returns an axis for each name, and a line for each run over those axes where it has a value."""
    width = _WIDTH - _LEFT - 60
    parts, top, bottom = list[str](), 34, _HEIGHT - 16
    places = [_LEFT + width * index / max(1, len(names) - 1) for index in range(len(names))]
    for number, (name, values) in enumerate(lines):
        found = [
            None if value is None or (place := axis.place(value)) is None else bottom - place * (bottom - top)
            for value, axis in zip(values, axes, strict=True)
        ]
        points = [None if y is None else (x, y) for x, y in zip(places, found, strict=True)]
        parts.append(f'<path {_line_style(number)} d="{_path(points)}"><title>{escape(name)}</title></path>')
    for x, name, axis in zip(places, names, axes, strict=True):
        parts.append(f'<path class="axis" d="M{x:.1f} {top}V{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="16" text-anchor="middle">{escape(name)}</text>')
        for place, text in axis.ticks(4):
            y = bottom - place * (bottom - top)
            parts.append(f'<text x="{x - 5:.1f}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    return _svg("".join(parts), label)


def draw_histogram(edges: Sequence[float], counts: Sequence[float], label: str) -> str:
    """Returns bars with the counts as areas; "" for a histogram that cannot be drawn."""
    if len(edges) != len(counts) + 1 or not all(map(math.isfinite, (*edges, *counts))):
        return ""
    widths = [right - left for left, right in pairwise(edges)]
    heights = [count / width if width > 0 else 0.0 for count, width in zip(counts, widths, strict=True)]
    top, span = max(heights, default=0), edges[-1] - edges[0]
    if top <= 0 or span <= 0:
        return ""
    bars = "".join(
        f'<rect class="bar" x="{320 * (left - edges[0]) / span:.2f}" y="{120 - 120 * height / top:.2f}" '
        f'width="{max(0.5, 320 * width / span - 0.5):.2f}" height="{120 * height / top:.2f}"/>'
        for left, width, height in zip(edges, widths, heights, strict=False)
    )
    ends = f"{format_number(edges[0])} to {format_number(edges[-1])}"
    return (
        f'<svg viewBox="0 0 320 120" role="img" aria-label="{escape(label)}">{bars}</svg>'
        f"<small>{sum(counts):g} values from {ends}</small>"
    )


def _line_style(colour: int) -> str:
    """Returns the attributes of a line. After `COLOURS` lines the colours repeat with other dashes."""
    dash = _DASHES[colour // COLOURS % len(_DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'class="curve k{colour % COLOURS}"{dashes}'


def _svg(content: str, label: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">{content}</svg>'


def _grid(x_axis: PlotAxis, y_axis: PlotAxis, x_label: str) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for place, text in y_axis.ticks(5):
        y = bottom - place * (bottom - _TOP)
        parts.append(
            f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
        )
    for place, text in x_axis.ticks(6):
        x = _LEFT + place * (right - _LEFT)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(text)}</text>')
    parts.append(
        f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>'
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" '
        f'text-anchor="middle">{escape(x_label)}</text>'
    )
    return "".join(parts)


def _place(
    x: float, y: float, x_axis: PlotAxis, y_axis: PlotAxis, inset: int = 0
) -> tuple[float, float] | None:
    px, py = x_axis.place(x), y_axis.place(y)
    if px is None or py is None:
        return None
    width = _WIDTH - _LEFT - _RIGHT - 2 * inset
    height = _HEIGHT - _TOP - _BOTTOM - 2 * inset
    return _LEFT + inset + px * width, _HEIGHT - _BOTTOM - inset - py * height


def _points(
    x: Sequence[float], y: Sequence[float], x_axis: PlotAxis, y_axis: PlotAxis
) -> Sequence[tuple[float, float] | None]:
    return [_place(px, py, x_axis, y_axis) for px, py in zip(x, y, strict=True)]


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """Returns the lines between points; None is a gap."""
    parts, is_first = list[str](), True
    for point in points:
        if point is None:
            is_first = True
            continue
        parts.append(f"{'M' if is_first else 'L'}{point[0]:.1f} {point[1]:.1f}")
        is_first = False
    return "".join(parts)


def _bands(curve: PlotCurve, x_axis: PlotAxis, y_axis: PlotAxis) -> Sequence[str]:
    """Returns the areas between the low and the high values, one for each part without a gap."""
    areas, part = list[str](), list[tuple[tuple[float, float], tuple[float, float]]]()
    lows, highs = (_points(curve.x, row, x_axis, y_axis) for row in (curve.low, curve.high))
    for low, high in [*zip(lows, highs, strict=True), (None, None)]:
        if low is not None and high is not None:
            part.append((low, high))
        elif part:
            areas.append(_path([*(low for low, _ in part), *(high for _, high in reversed(part))]) + "Z")
            part = []
    return areas

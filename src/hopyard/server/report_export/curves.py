"""Curves of runs as pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import numpy as np

from hopyard.domain.metric_values import decode_value
from hopyard.domain.moving_average import moving_average
from hopyard.errors import Conflict, SpecError
from hopyard.server.other_servers import check_stored_locally
from hopyard.server.report_export.axes import AxisText, fit_axis
from hopyard.server.report_export.columns import ReportRow, cell_text, column_title
from hopyard.server.report_export.pictures import PlotCurve, draw_curves, draw_legend
from hopyard.server.schemas.reports import CurvesBlock
from hopyard.server.services import Services
from hopyard.tracking.run_history import load_histories
from hopyard.tracking.series_curves import AxisKind, CurveRequest, CurveSection, select_curves
from hopyard.tracking.series_request import SeriesSelection, read_curves

_BUCKETS = 300  # per curve: half a pixel of the picture each
_AXES: Mapping[str, tuple[AxisKind, AxisText]] = {
    "step": ("step", "number"),
    "time": ("time", "time"),
    "elapsed": ("elapsed", "duration"),
}
_METRIC_AXIS = "metrics."


async def curves_html(services: Services, block: CurvesBlock, rows: Sequence[ReportRow]) -> str:
    """Returns a picture for each metric, with the legend before them."""
    kind, text = _AXES.get(block.x, ("metric", "number"))
    x_metric = block.x.removeprefix(_METRIC_AXIS) if kind == "metric" else None
    sections = await _read(services, block, rows, kind, x_metric)
    groups = _groups(block, rows)
    legend = [(label, colour) for colour, (label, _) in enumerate(groups)]
    figures = []
    for metric in dict.fromkeys(name for _, name in sections):
        curves = []
        for colour, (label, members) in enumerate(groups):
            found = [
                _curve(section, label, colour)
                for row in members
                if (section := sections.get((row.run.id, metric))) is not None
            ]
            if found:
                curves.append(_smooth(found[0] if len(found) == 1 else _mean(found), block.smoothing))
        x_axis = fit_axis([x for curve in curves for x in curve.x], is_log=block.log_x, text=text)
        picture = (
            ""
            if x_axis is None
            else draw_curves(curves, x_axis, label=metric, x_label=x_metric or block.x, is_log_y=block.log_y)
        )
        if picture:
            figures.append(f"<figure><figcaption>{escape(metric)}</figcaption>{picture}</figure>")
    return draw_legend(legend) + "".join(figures) if figures else ""


async def _read(
    services: Services,
    block: CurvesBlock,
    rows: Sequence[ReportRow],
    kind: AxisKind,
    x_metric: str | None,
) -> dict[tuple[str, str], CurveSection]:
    """Returns the points by run and metric. A run with streams on another server has none."""
    if not block.metrics or not rows:
        return {}
    histories = []
    for history in (
        await load_histories(services.runs, services.streams, [row.run.id for row in rows])
    ).values():
        try:
            await check_stored_locally(services, history.run)
        except Conflict:
            continue
        histories.append(history)
    try:
        found = await read_curves(
            services.series, services.streams, histories, SeriesSelection(block.metrics, x_metric=x_metric)
        )
    except SpecError:
        return {}
    request = CurveRequest(kind, None, None, _BUCKETS, frozenset(("mean", "min", "max")))
    sections, _ = select_curves(found, request, None)
    return {(section.id[0], section.id[2]): section for section in sections}


def _groups(block: CurvesBlock, rows: Sequence[ReportRow]) -> list[tuple[str, list[ReportRow]]]:
    if not block.group:
        return [(row.label, [row]) for row in rows]
    groups: dict[str, list[ReportRow]] = {}
    for row in rows:
        value = cell_text(block.group, row.value(block.group)) or "none"
        groups.setdefault(f"{column_title(block.group)}={value}", []).append(row)
    return [(f"{label} ({len(members)})", members) for label, members in groups.items()]


def _numbers(values: Iterable[float | str | None]) -> list[float]:
    return [decode_value(value) for value in values]


def _curve(section: CurveSection, label: str, colour: int) -> PlotCurve:
    columns = section.columns
    if section.is_exact:
        return PlotCurve(label, colour, columns["x"], _numbers(columns["values"]))
    low, high = _numbers(columns["min"]), _numbers(columns["max"])
    return PlotCurve(label, colour, columns["x"], _numbers(columns["mean"]), low, high)


def _mean(curves: Sequence[PlotCurve]) -> PlotCurve:
    """Returns the mean of curves, with their lowest and highest values as its band. Between its points a
    curve is a straight line; outside of them it does not count."""
    union = np.unique(np.concatenate([np.asarray(curve.x, dtype=float) for curve in curves]))
    union = union[np.isfinite(union)]
    rows = []
    for curve in curves:
        x, y = np.asarray(curve.x, dtype=float), np.asarray(curve.y, dtype=float)
        shown = np.isfinite(x) & np.isfinite(y)
        x, y = x[shown], y[shown]
        rows.append(
            np.interp(union, x, y, left=np.nan, right=np.nan) if len(x) else np.full(len(union), np.nan)
        )
    values = np.ma.masked_invalid(np.array(rows))
    mean, low, high = (
        np.ma.filled(row.astype(float), np.nan).tolist()
        for row in (values.mean(axis=0), values.min(axis=0), values.max(axis=0))
    )
    return PlotCurve(curves[0].label, curves[0].colour, union.tolist(), mean, low, high)


def _smooth(curve: PlotCurve, weight: float) -> PlotCurve:
    if weight <= 0:
        return curve
    y, low, high = (moving_average(values, weight) for values in (curve.y, curve.low, curve.high))
    return PlotCurve(curve.label, curve.colour, curve.x, y, low, high)

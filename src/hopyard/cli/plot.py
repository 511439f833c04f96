"""`hop plot`: curves of metrics, in the terminal or as a PNG."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from hopyard.api_client.client import Client
from hopyard.cli.options import PngPath, json_option, last_run_argument
from hopyard.cli.terminal import console
from hopyard.cli.terminal.chart import (
    AXIS_MARKS,
    COLOURS,
    MARKS,
    ChartCell,
    Curve,
    clamp,
    draw_chart,
)
from hopyard.client.run_commands import list_run_commands
from hopyard.client.run_lookup import get_run
from hopyard.client.system_usage import load_system_series
from hopyard.config.key_values import format_value
from hopyard.config.suggest import unknown_name_hints
from hopyard.domain.metric_values import MetricValue, decode_value
from hopyard.domain.moving_average import moving_average
from hopyard.domain.name_pattern import compile_name_pattern
from hopyard.domain.system_series import SYSTEM_PREFIX
from hopyard.domain.text import escape
from hopyard.errors import NotFound, SpecError, UsageError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_SPLIT_PREFIX = re.compile(
    r"^(?:train|training|val|valid|validation|test|eval)[_/.-]|[_/.-](?:train|training|val|valid|validation|test|eval)\Z",
    re.I,
)
_MAX_CHARTS = 6
_MAX_POINTS = 2000
_MAX_SERIES = 200  # of a run, if its metrics are not named
_MAX_NAMES, _MAX_HINTS = 30, 2000  # in a message
# of a run's sentences about missing points of its curves
_REPLICA_STREAM_PREFIXES = ("metrics of replica", "tensorboard of replica")
_TIME_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


# by run and metric
SeriesByRun = dict[str, dict[str, "api.SeriesOut"]]
PointsByRun = dict[str, dict[str, list[tuple[float, MetricValue]]]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves that share their axes. unit: unit of x."""

    title: str
    curves: tuple[Curve, ...]
    unit: str = "step"


@click.command("plot")
@last_run_argument()
@click.argument("metrics", nargs=-1, metavar="[METRIC]...")
@click.option(
    "--with",
    "others",
    multiple=True,
    metavar="RUN",
    help="Draw the same metrics of this run too (repeatable).",
)
@click.option(
    "--x",
    "axis",
    type=click.Choice(("step", "time")),
    default="step",
    show_default=True,
    help="The x axis: steps, or time since each run began.",
)
@click.option("--png", type=PngPath(), metavar="FILE", help="Write a PNG instead (needs `hopyard[plot]`).")
@click.option(
    "--smooth",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    metavar="WEIGHT",
    help="Weight of the moving average, from 0 (none) to below 1.",
)
@click.option("--width", type=click.IntRange(40, 400), help="Width in columns.  [default: the terminal's]")
@click.option(
    "--height",
    type=click.IntRange(6, 200),
    default=16,
    show_default=True,
    help="Height of each chart in rows.",
)
@click.option(
    "--rank",
    type=click.IntRange(0),
    help="The replica of this rank.  [default: the lowest rank with these metrics]",
)
@json_option
def plot(
    ref: str,
    metrics: tuple[str, ...],
    others: tuple[str, ...],
    axis: Literal["step", "time"],
    png: Path | None,
    smooth: float,
    width: int | None,
    height: int,
    rank: int | None,
    as_json: bool,
) -> None:
    """Draw METRICs of RUN, by default of the newest run; by default all metrics. `*` stands for any text.

    Metrics that differ only in train, val or test share a chart. `sys/*` is the resource usage: sys/cpu,
    sys/memory, sys/disk_read, sys/disk_write, sys/host_network_in, sys/host_network_out, sys/gpu0,
    sys/gpu0_memory.
    """
    from hopyard.api_client.local_server import connect

    client = connect()
    runs = [get_run(client, name) for name in (ref, *others)]
    max_series = max(_MAX_SERIES, len(metrics))
    series_by_run = {
        run["name"]: _load_series(client, run, metrics, rank, None if as_json else max_series) for run in runs
    }
    if as_json:
        console.print_json(series_by_run)
        return
    points, unit = (
        elapsed_points(series_by_run, runs) if axis == "time" else (step_points(series_by_run), "step")
    )
    charts = make_charts({title: points[name] for name, title in run_titles(runs).items()}, smooth, unit)
    if not charts:
        console.print_message(
            f"{runs[0]['name']} has logged no metric yet; call `hop.log(loss=…, step=…)` in the script"
        )
    elif png is not None:
        _write_png(charts, png)
        console.print_message(f"wrote {png}")
    else:
        shown = charts if metrics else charts[:_MAX_CHARTS]
        marks = change_marks(client, runs) if axis == "step" else []
        for number, chart in enumerate(shown):
            console.print_lines(
                [
                    *[""] * bool(number),
                    *chart_lines(chart, width or min(console.terminal_width(), 160), height, marks),
                ]
            )
        omitted = [chart.title for chart in charts[len(shown) :]]
        if metrics and any(len(series) >= max_series for series in series_by_run.values()):
            console.print_message(f"the first {max_series} metrics; a narrower pattern shows others")
        if omitted:
            total = max(len(run.get("latest") or ()) for run in runs)
            more = ", …" if len(omitted) > _MAX_NAMES or total > _MAX_SERIES else ""
            console.print_message(
                f"not drawn: {', '.join(map(escape, omitted[:_MAX_NAMES]))}{more}; name the metrics to draw"
            )
    for run in runs:
        for sentence in run.get("unstored") or ():
            if sentence.startswith(_REPLICA_STREAM_PREFIXES):
                console.print_message(f"warning: {run['name']}: {sentence}")


def _load_series(
    client: Client, run: api.RunOut, metrics: tuple[str, ...], rank: int | None, max_series: int | None
) -> dict[str, api.SeriesOut]:
    # a request names several metrics with commas between them
    names = ",".join(metrics) if metrics and not any("," in name for name in metrics) else None
    if metrics and names is None:
        max_series = None
    patterns = {text: compile_name_pattern(text) for text in metrics}
    usage = any(text.startswith(SYSTEM_PREFIX) for text in metrics)
    loaded = load_system_series(client, run, rank=rank) if usage else {}
    if not metrics or not all(text.startswith(SYSTEM_PREFIX) for text in metrics):
        loaded |= client.iterate_run_metrics(
            run["id"], names=names, rank=rank, max_points=_MAX_POINTS, max_rows=max_series
        )
    series_by_name = {
        name: series
        for name, series in loaded.items()
        if series["steps"] and (not metrics or any(each.fullmatch(name) for each in patterns.values()))
    }
    for text, pattern in patterns.items():
        if not any(pattern.fullmatch(name) for name in series_by_name):
            logged = [*loaded] if usage else list(run.get("latest") or {})
            hints = (
                unknown_name_hints(text, map(escape, logged[:_MAX_HINTS]), subject="it has")
                if logged
                else ("it has logged no metric; call `hop.log(loss=…, step=…)` in the script",)
            )
            raise NotFound(f"{run['name']} has no metric `{escape(text)}`", hints=hints)
    return series_by_name


def run_titles(runs: Sequence[api.RunOut]) -> dict[str, str]:
    """Returns the title of each run by name: its label, unless another run has the same."""
    labels = {run["name"]: run["spec"].get("label") or "" for run in runs}
    texts = list(labels.values())
    return {name: label if label and texts.count(label) == 1 else name for name, label in labels.items()}


def step_points(series_by_run: SeriesByRun) -> PointsByRun:
    return {
        run: {
            name: list(zip(series["steps"], series["values"], strict=True))
            for name, series in metrics.items()
        }
        for run, metrics in series_by_run.items()
    }


def elapsed_points(series_by_run: SeriesByRun, runs: Sequence[api.RunOut]) -> tuple[PointsByRun, str]:
    """Returns the points over the time since each run began, and the unit that suits the longest run. Points
    without a time are left out."""
    began = {
        run["name"]: datetime.fromisoformat(run["started_at"] or run["submitted_at"]).timestamp()
        for run in runs
    }
    elapsed = {
        run: {
            name: [
                (time - began[run], value)
                for time, value in zip(series["times"], series["values"], strict=True)
                if time is not None
            ]
            for name, series in metrics.items()
        }
        for run, metrics in series_by_run.items()
    }
    lasts = [points[-1][0] for series in elapsed.values() for points in series.values() if points]
    longest = max(lasts, default=0.0)
    size, unit = next((span for span in _TIME_UNITS if longest >= 2 * span[0]), _TIME_UNITS[-1])
    return {
        run: {name: [(x / size, value) for x, value in points] for name, points in series.items() if points}
        for run, series in elapsed.items()
    }, unit


def make_charts(points_by_run: PointsByRun, smooth: float, unit: str = "step") -> list[Chart]:
    """Groups series into charts: one per metric; train, val and test of one metric share a chart."""
    groups: dict[str, list[Curve]] = {}
    for run, series in points_by_run.items():
        for name, points in series.items():
            ys = [decode_value(value) for _, value in points]
            label = name if len(points_by_run) == 1 else f"{run} {name}"
            groups.setdefault(_SPLIT_PREFIX.sub("", name) or name, []).append(
                Curve(label, [x for x, _ in points], moving_average(ys, smooth) if smooth else ys)
            )
    return [
        Chart(title if len(curves) > 1 else curves[0].name, tuple(curves), unit)
        for title, curves in groups.items()
    ]


def change_marks(client: Client, runs: Sequence[api.RunOut]) -> list[tuple[float, str]]:
    """Returns the steps at which users set parameters of the runs, with a text for each."""
    return [
        (
            command["step"],
            (f"{run['name']} " if len(runs) > 1 else "")
            + f"step {command['step']}: "
            + ", ".join(
                f"{name} {format_value(before)} -> {format_value(after)}"
                for name, (before, after) in command["changes"].items()
            ),
        )
        for run in runs
        for command in list_run_commands(client, run)
        if command["step"] is not None and command["changes"]
    ]


def chart_lines(chart: Chart, width: int, height: int, marks: Sequence[tuple[float, str]] = ()) -> list[str]:
    """Returns the chart as text: a heading with the last values, then the picture.

    marks: values of x that are marked on the axis, with their texts below the picture.
    """
    several = len(chart.curves) > 1
    head = [console.paint(chart.title, "bold")]
    for index, curve in enumerate(chart.curves):
        last = console.format_number(curve.ys[-1])
        colour = COLOURS[index % len(COLOURS)]
        head.append(
            console.paint(f"{MARKS[index % len(MARKS)]} {curve.name} {last}", colour)
            if several
            else f"{last} {_axis_value_text(chart.unit, curve.xs[-1])}"
        )
    if several and chart.unit != "step":
        head.append(f"over {chart.unit}")
    head += [
        console.paint(f"{escape(curve.name)}: {missing}" if several else missing, "dim")
        for curve in chart.curves
        if (missing := _non_finite_text(curve))
    ]
    unicode = console.supports_unicode(sys.stdout)
    picture = draw_chart(
        chart.curves, width=width, height=height, unicode=unicode, marks=[x for x, _ in marks]
    )
    return [
        "  ".join(head),
        *(_paint_row(row) for row in picture or [[ChartCell("no finite value")]]),
        *(f"{AXIS_MARKS[unicode]} {escape(text)}" for _, text in marks),
    ]


def _non_finite_text(curve: Curve) -> str:
    """Counts the values that no picture shows: `2 NaN, 1 inf`."""
    counts = Counter(console.format_number(y) for y in curve.ys if not math.isfinite(y))
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))


def _axis_value_text(unit: str, x: float) -> str:
    return f"at step {x}" if unit == "step" else f"after {console.format_number(x)} {unit}"


def _paint_row(row: Sequence[ChartCell]) -> str:
    """Returns a row of the picture; neighbours of one curve share a colour code."""
    parts = []
    for curve, cells in groupby(row, key=lambda cell: cell.curve):
        text = "".join(cell.text for cell in cells)
        parts.append(console.paint(text, COLOURS[curve % len(COLOURS)]) if curve >= 0 else text)
    return "".join(parts).rstrip()


def _write_png(charts: list[Chart], file: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        raise UsageError("drawing a PNG needs matplotlib", hints=("pip install 'hopyard[plot]'",)) from None
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2 * len(charts)), layout="constrained")
    for axes, chart in zip(figure.subplots(len(charts), squeeze=False)[:, 0], charts, strict=True):
        for curve in chart.curves:
            ys = [clamp(y) for y in curve.ys]
            # a label that begins with `_` would be hidden
            label = f" {escape(curve.name)}"
            axes.plot(curve.xs, ys, label=label, marker="o" if len(curve.xs) < 3 else None)
        axes.set(xlabel=chart.unit)
        axes.set_title(escape(chart.title), parse_math=False)
        axes.grid(alpha=0.3)
        if len(chart.curves) > 1:
            for text in axes.legend().get_texts():
                text.set_parse_math(False)
    try:
        figure.savefig(file, format="png", dpi=120)
    except OSError as error:
        raise SpecError(f"--png: {file} cannot be written: {error.strerror}") from error

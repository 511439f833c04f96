"""`hop search gantt`: a chart of trials on workers over time, in the terminal or as a PNG."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from hopyard.cli.terminal import console
from hopyard.cli.terminal.chart import COLOURS, format_tick
from hopyard.domain.axis_ticks import choose_ticks
from hopyard.errors import SpecError, UsageError
from hopyard.studies.view.gantt import BREAK, Gantt, timeline_strips

_TRIAL_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_IDLE_SIGN = "."
_MIN_WIDTH = 20
_EMPTY_TEXT = "no unit of work has ended yet"
_MAX_TRIAL_LABELS = 40  # trials that a picture's legend names
_MIN_LABEL_SHARE = 0.007  # of the picture's width, that a digit of a trial's number takes
_HATCH = "//"
_BREAK_COLOUR = "0.93"
_GOLDEN_RATIO = 0.618034  # steps round a circle of colours that come close to none before


def gantt_lines(chart: Gantt, *, width: int) -> list[str]:
    """Returns one line per worker; each trial has its own sign, so the chart needs no colours."""
    margin = max(len(row.worker) for row in chart.rows) + 1
    columns = max(_MIN_WIDTH, width - margin - 12)
    lines = []
    for row, strip in zip(chart.rows, timeline_strips(chart, columns), strict=True):
        picture = "".join(
            console.paint(
                (trial_sign(trial) if trial is not None else _IDLE_SIGN) * len(list(cells)),
                _trial_style(trial),
            )
            for trial, cells in groupby(strip)
        )
        share = row.busy_s / chart.attended_s if chart.attended_s else 0.0
        lines.append(f"{row.worker:<{margin}}{picture}  {share:4.0%} busy")
    return [*lines, " " * margin + _axis_line(chart.span_s, columns), summary_lines(chart)]


def summary_lines(chart: Gantt) -> str:
    """Returns idle time, and the pauses between units."""
    units = sum(len(row.bars) for row in chart.rows)
    text = f"{units} units in {console.format_duration(chart.attended_s)}, {chart.idle_share:.1%} idle"
    if chart.breaks:
        away = console.format_duration(chart.span_s - chart.attended_s)
        text += (
            f" (without {away} between "
            f"attempts{f', {len(chart.breaks)} times' if len(chart.breaks) > 1 else ''})"
        )
    median, most = chart.gap_s(0.5), chart.gap_s(0.99)
    if median is not None and most is not None:
        text += (
            f"; from a unit's end to the next one's beginning {1000 * median:.1f} ms (median), "
            f"{1000 * most:.1f} ms (99 of 100)"
        )
    return text


def trial_sign(trial: str) -> str:
    if trial == BREAK:
        return " "
    return _TRIAL_SIGNS[int(trial) % len(_TRIAL_SIGNS)] if trial.isdecimal() else trial[:1]


def _trial_style(trial: str | None) -> str | None:
    if trial is None:
        return "dim"
    return COLOURS[int(trial) % len(COLOURS)] if trial.isdecimal() else None


def _axis_line(span_s: float, columns: int) -> str:
    line = [" "] * columns
    if span_s <= 0:
        return ""
    end = -1
    for value in choose_ticks(0.0, span_s, max(2, columns // 14)):
        text = format_tick(value, (0.0, span_s)) + " s"
        at = min(round(value / span_s * (columns - 1)), columns - len(text))
        if at > end:
            line[at : at + len(text)] = text
            end = at + len(text)
    return "".join(line).rstrip()


def write_png(chart: Gantt, file: Path, *, title: str) -> None:
    """Draws hops coloured by trial, evaluations hatched.
    Raises UsageError without matplotlib, SpecError for an empty chart or a file that cannot be written.
    """
    if not chart.rows:
        raise SpecError(_EMPTY_TEXT, hints=("run `hop search show` for the state of the study",))
    try:
        import matplotlib
    except ImportError:
        raise UsageError("drawing a PNG needs matplotlib", hints=("pip install 'hopyard[plot]'",)) from None
    matplotlib.use("Agg")
    from matplotlib import colormaps
    from matplotlib.colors import hsv_to_rgb
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    trials = sorted(
        {bar.trial for row in chart.rows for bar in row.bars},
        key=lambda t: (int(t) if t.isdecimal() else 0, t),
    )
    few = colormaps["tab20"]
    colour: dict[str, Any] = {
        trial: few(at) if len(trials) <= few.N else hsv_to_rgb((at * _GOLDEN_RATIO % 1.0, 0.5, 0.95))
        for at, trial in enumerate(trials)
    }
    figure = Figure(figsize=(11, 1.6 + 0.45 * len(chart.rows)), layout="constrained")
    axes = figure.subplots()
    for at, row in enumerate(chart.rows):
        for bar in row.bars:
            axes.barh(
                at,
                bar.ended_at - bar.began_at,
                left=bar.began_at - chart.began_at,
                height=0.8,
                color=colour[bar.trial],
                edgecolor="white",
                linewidth=0.3,
                hatch=_HATCH if bar.kind == "evaluate" else None,
            )
            if (
                bar.kind == "train"
                and bar.ended_at - bar.began_at > _MIN_LABEL_SHARE * (1 + len(bar.trial)) * chart.span_s
            ):
                axes.text(
                    (bar.began_at + bar.ended_at) / 2 - chart.began_at,
                    at,
                    bar.trial,
                    ha="center",
                    va="center",
                    fontsize="x-small",
                )
    axes.set_yticks(range(len(chart.rows)), [row.worker for row in chart.rows])
    axes.invert_yaxis()
    axes.set(xlabel="seconds", title=f"{title}: {chart.idle_share:.1%} idle", xlim=(0.0, chart.span_s or 1.0))
    named = [Patch(color=colour[trial], label=f"trial {trial}") for trial in trials[:_MAX_TRIAL_LABELS]]
    if len(trials) > _MAX_TRIAL_LABELS:
        named.append(Patch(visible=False, label=f"and {len(trials) - _MAX_TRIAL_LABELS} more"))
    for since, until in chart.breaks:
        axes.axvspan(since - chart.began_at, until - chart.began_at, color=_BREAK_COLOUR)
    if chart.breaks:
        named.append(Patch(color=_BREAK_COLOUR, label="between attempts"))
    if any(bar.kind == "evaluate" for row in chart.rows for bar in row.bars):
        named.append(Patch(facecolor="lightgrey", edgecolor="white", hatch=_HATCH, label="evaluation"))
    axes.legend(
        handles=named,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        ncols=1 + len(named) // 12,
        fontsize="small",
        frameon=False,
    )
    try:
        figure.savefig(file, format="png", dpi=120)
    except OSError as error:
        raise SpecError(f"--png: {file} cannot be written: {error.strerror}") from error


def print_gantt(chart: Gantt) -> None:
    """Prints the chart to stdout; an empty chart is reported on stderr."""
    if not chart.rows:
        console.print_message(_EMPTY_TEXT)
        return
    width = console.terminal_width() if console.is_terminal(sys.stdout) else 100
    console.print_lines(gantt_lines(chart, width=width))

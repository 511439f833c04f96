"""Draws reports: the use of the cluster and the pending runs over time, and the distributions of waits and
completions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopyard.errors import SpecError, UsageError
from hopyard.simulator.report import SimulationReport

_TIME_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def write_png(reports: Sequence[SimulationReport], titles: Sequence[str], file: Path) -> None:
    """Raises UsageError without matplotlib, SpecError when the file cannot be written."""
    try:
        import matplotlib
    except ImportError:
        raise UsageError("drawing a PNG needs matplotlib", hints=("pip install 'hopyard[plot]'",)) from None
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    use_axes, queue_axes, wait_axes, completion_axes = figure.subplots(2, 2).flat
    size, unit = _unit(max((report.samples[-1].at_s for report in reports if report.samples), default=0.0))
    for report, title in zip(reports, titles, strict=True):
        times = [sample.at_s / size for sample in report.samples]
        used = [100 * (sample.gpu_used if report.by_gpu else sample.cpu_used) for sample in report.samples]
        use_axes.plot(times, used, label=title, linewidth=1, drawstyle="steps-post")
        waiting = [sample.waiting for sample in report.samples]
        queue_axes.plot(times, waiting, label=title, linewidth=1, drawstyle="steps-post")
        _plot_distribution(wait_axes, report.waits, title)
        _plot_distribution(completion_axes, report.completions, title)
    use_axes.set(
        title="GPUs in use" if all(report.by_gpu for report in reports) else "in use",
        xlabel=unit,
        ylabel="%",
        ylim=(0, 102),
    )
    queue_axes.set(title="runs that wait", xlabel=unit)
    queue_axes.set_ylim(bottom=0)
    queue_axes.yaxis.get_major_locator().set_params(integer=True)
    wait_axes.set(
        title="time until the first start", xlabel="seconds", ylabel="part of the runs", ylim=(0, 1.02)
    )
    completion_axes.set(
        title="time from submission to end", xlabel="seconds", ylabel="part of the runs", ylim=(0, 1.02)
    )
    for axes in (use_axes, queue_axes, wait_axes, completion_axes):
        axes.grid(alpha=0.3)
        if len(reports) > 1:
            axes.legend()
    try:
        figure.savefig(file, format="png", dpi=120)
    except OSError as error:
        raise SpecError(f"--png: {file} cannot be written: {error.strerror}") from error


def _unit(longest_s: float) -> tuple[float, str]:
    return next((span for span in _TIME_UNITS if longest_s >= 2 * span[0]), _TIME_UNITS[-1])


def _plot_distribution(axes: Any, ordered: Sequence[float], title: str) -> None:
    """Plots the share of the runs that took at most a given time. Times below 1 s are drawn at 1 s, because
    the axis is logarithmic."""
    shares = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
    axes.plot(
        [max(value, 1.0) for value in ordered], shares, label=title, linewidth=1, drawstyle="steps-post"
    )
    axes.set_xscale("log")

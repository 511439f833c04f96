"""Tables of simulation reports: one column per report, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from hopyard.cli.terminal import console
from hopyard.domain.queue import CPU, GPU, MEMORY
from hopyard.simulator.report import QueueShare, SimulationReport

FigureText = Callable[[SimulationReport], str]
_COLUMN_GAP = 2  # between two columns
_RESOURCES = {"": "-", GPU: "GPUs", CPU: "CPUs", MEMORY: "memory"}


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """One simulation. added: the nodes of `--add`, "" for none."""

    policy: str
    added: str
    report: SimulationReport

    @property
    def title(self) -> str:
        return f"{self.policy} {self.added}".strip()


def report_table(columns: Sequence[ReportColumn], width: int) -> list[str]:
    """Returns one line per figure, without lines that are empty for all reports.
    Columns beyond `width` continue below.
    """
    figures = [
        (name, [cell(column.report) for column in columns])
        for name, cell in _figure_rows([column.report for column in columns])
    ]
    shown = [(name, cells) for name, cells in figures if any(cells)]
    table = console.format_table(
        ["", *(column.title for column in columns)],
        [[name, *cells] for name, cells in shown],
        right=range(1, len(columns) + 1),
    )
    if len(columns) == 1 or _fits_width(table, width):
        return table
    return _table_blocks(
        [["", *(name for name, _ in shown)]],
        columns,
        [[cells[index] for _, cells in shown] for index in range(len(columns))],
        width,
    )


def queue_table(columns: Sequence[ReportColumn], width: int) -> list[str]:
    """Returns one line per queue: its runs, its share of its entitlement in each report, and its mean wait.
    None for one queue. A table wider than `width` is split into shares and waits.
    """
    queues_by_name = [{queue.name: queue for queue in column.report.queues} for column in columns]
    names = sorted({name for queues in queues_by_name for name in queues})
    if len(names) < 2:
        return []
    queue_rows = [[queues.get(name) for name in names] for queues in queues_by_name]
    fixed = [
        ["QUEUE", *names],
        ["RUNS", *(str(max(queue.runs for queue in row if queue)) for row in zip(*queue_rows, strict=True))],
    ]
    measured = [_share_resource(row) for row in zip(*queue_rows, strict=True)]
    if len(set(measured)) > 1:  # a share of one is no share of the other
        fixed.append(["OF", *measured])
    shares, waits = (
        [[*map(_share_text, queues)] for queues in queue_rows],
        [[*map(_wait_text, queues)] for queues in queue_rows],
    )
    measures = [
        [f"{column.title} {head}", *cells]
        for column, *both in zip(columns, shares, waits, strict=True)
        for head, cells in zip(("SHARE", "WAIT"), both, strict=True)
    ]
    table = _table_lines([*fixed, *measures])
    if len(columns) == 1 or _fits_width(table, width):
        return table
    return [
        "share of each queue",
        *_table_blocks(fixed, columns, shares, width),
        "",
        "mean wait of each queue",
        *_table_blocks(fixed[:2], columns, waits, width),
    ]


def _table_blocks(
    fixed: Sequence[Sequence[str]],
    columns: Sequence[ReportColumn],
    cells: Sequence[Sequence[str]],
    width: int,
) -> list[str]:
    """Returns tables below each other, each with the `fixed` columns and as many others as fit.
    Reports of one cluster stay together under the nodes that were added to it.
    """
    lines: list[str] = []
    fixed_width = sum(_column_width(column) for column in fixed) + _COLUMN_GAP * (len(fixed) - 1)
    for added, group in groupby(zip(columns, cells, strict=True), key=lambda pair: pair[0].added):
        report_columns = [[column.policy, *texts] for column, texts in group]
        lines += ([""] if lines else []) + ([added] if added else [])
        for index, block in enumerate(_columns_that_fit(report_columns, width - fixed_width)):
            lines += ([""] if index else []) + _table_lines([*fixed, *block])
    return lines


def _columns_that_fit(columns: Iterable[Sequence[str]], width: int) -> Iterator[list[Sequence[str]]]:
    """Splits columns into groups that fit, with at least one each."""
    block: list[Sequence[str]] = []
    remaining = width
    for column in columns:
        needed = _column_width(column) + _COLUMN_GAP
        if block and needed > remaining:
            yield block
            block, remaining = [], width
        block.append(column)
        remaining -= needed
    yield block


def _table_lines(columns: Sequence[Sequence[str]]) -> list[str]:
    """Returns the table of columns with their heads; all but the first are aligned to the right."""
    head, *rows = ([*row] for row in zip(*columns, strict=True))
    right = [index for index in range(1, len(head)) if head[index] != "OF"]
    return console.format_table(head, rows, right=right)


def _column_width(column: Sequence[str]) -> int:
    return max(map(console.display_width, column))


def _fits_width(lines: Sequence[str], width: int) -> bool:
    return all(console.display_width(line) <= width for line in lines)


def _share_resource(queues: Sequence[QueueShare | None]) -> str:
    """Returns the resource of the queue's shares, over all reports."""
    names = dict.fromkeys(queue.resource for queue in queues if queue is not None)
    return ", ".join(_RESOURCES.get(name, name) for name in names)


def _share_text(queue: QueueShare | None) -> str:
    return "-" if queue is None or queue.ratio is None else f"{queue.ratio:.2f}"


def _wait_text(queue: QueueShare | None) -> str:
    return console.format_duration(queue.wait.mean) if queue is not None and queue.wait.count else "-"


def _fairness_text(report: SimulationReport) -> str:
    """Computes fairness over at least two queues: one queue alone is always fair."""
    if len(report.queues) < 2:
        return ""
    measured = [queue for queue in report.queues if queue.ratio is not None]
    return "-" if report.jain is None or len(measured) < 2 else f"{report.jain:.3f}"


def _figure_rows(reports: Sequence[SimulationReport]) -> list[tuple[str, FigureText]]:
    reserved = [reservation.name for reservation in reports[0].reservations]
    groups = list(dict.fromkeys(group.name for report in reports for group in report.groups))
    return [
        ("runs ended", lambda report: f"{report.ended} of {report.runs}"),
        ("larger than the cluster", lambda report: _count_text(sum(report.refused.values()))),
        (
            "not ended",
            lambda report: ", ".join(
                f"{count} {reason}" for reason, count in sorted(report.unfinished.items())
            ),
        ),
        ("makespan", lambda report: console.format_duration(report.makespan_s)),
        ("GPUs in use", lambda report: f"{report.gpu_use:.1%}" if report.by_gpu else ""),
        ("CPUs in use", lambda report: f"{report.cpu_use:.1%}"),
        ("free GPUs of no use", lambda report: f"{report.fragmentation:.1%}" if report.by_gpu else ""),
        ("wait, mean", lambda report: _ended_figure(report, report.wait.mean)),
        ("wait, median", lambda report: _ended_figure(report, report.wait.median)),
        ("wait, p99", lambda report: _ended_figure(report, report.wait.p99)),
        ("completion, mean", lambda report: _ended_figure(report, report.completion.mean)),
        ("completion, median", lambda report: _ended_figure(report, report.completion.median)),
        ("completion, p99", lambda report: _ended_figure(report, report.completion.p99)),
        *((f"  completion of {name}", _group_figure(name)) for name in groups),
        ("fairness of queues (Jain)", _fairness_text),
        *((f"reserved for {name}, in use", _reserved_figure(name)) for name in reserved),
        ("preemptions", lambda report: _count_text(report.losses.preemptions)),
        ("nodes lost", lambda report: _count_text(report.losses.node_losses)),
        (
            "GPU hours in vain",
            lambda report: f"{report.losses.gpu_seconds / 3600:.1f}" if report.losses.gpu_seconds else "",
        ),
        (
            "promises kept",
            lambda report: (
                f"{report.promises.kept} of {report.promises.given}" if report.promises.given else ""
            ),
        ),
        (
            "promises broken",
            lambda report: ", ".join(f"{count} {cause}" for cause, count in report.promises.broken.items()),
        ),
        ("promises late unsaid", lambda report: _count_text(report.promises.late)),
        ("decided in", lambda report: console.format_duration(report.timing.policy_s)),
        ("played in", lambda report: console.format_duration(report.timing.wall_s)),
    ]


def _count_text(number: int) -> str:
    return str(number) if number else ""


def _ended_figure(report: SimulationReport, span_s: float) -> str:
    return console.format_duration(span_s) if report.ended else "-"


def _group_figure(name: str) -> FigureText:
    def cell(report: SimulationReport) -> str:
        match = next((group for group in report.groups if group.name == name), None)
        return "" if match is None else console.format_duration(match.completion.mean)

    return cell


def _reserved_figure(name: str) -> FigureText:
    def cell(report: SimulationReport) -> str:
        share = next((reservation for reservation in report.reservations if reservation.name == name), None)
        if share is None or not share.times:
            return "never began"
        unit = "GPU hours" if share.by_gpu else "core hours"
        taken_text = f", {share.taken:.1f} taken by others" if share.taken else ""
        return f"{share.ratio:.1%} of {share.reserved:.1f} {unit}{taken_text}"

    return cell

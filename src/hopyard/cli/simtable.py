"""Reports of simulations as tables: a column for each, so that they can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hopyard.cli import console
from hopyard.simulator.report import QueueShare, Report

Cell = Callable[[Report], str]


def table_of(reports: Sequence[Report], titles: Sequence[str]) -> list[str]:
    """One line per figure. Lines that say nothing for any report are left out."""
    rows = [[name, *(cell(report) for report in reports)] for name, cell in _rows(reports)]
    shown = [row for row in rows if any(row[1:])]
    return console.table(["", *titles], shown, right=range(1, len(titles) + 1))


def queue_table(reports: Sequence[Report], titles: Sequence[str]) -> list[str]:
    """One line per queue: its runs, what each report gave it of what it was entitled to, and its mean wait. None for one queue."""
    names = [queue.name for queue in reports[0].queues]
    if len(names) < 2:
        return []
    head = ["QUEUE", "RUNS"] + [f"{title} {what}" for title in titles for what in ("SHARE", "WAIT")]
    by_name = [{queue.name: queue for queue in report.queues} for report in reports]
    rows = []
    for name in names:
        found = [queues[name] for queues in by_name]
        cells = [text for queue in found for text in (_share(queue), console.span(queue.wait.mean) if queue.wait.count else "-")]
        rows.append([name, str(found[0].runs), *cells])
    return console.table(head, rows, right=range(1, len(head)))


def _share(queue: QueueShare) -> str:
    return f"{queue.ratio:.2f}" if queue.entitled else "-"


def _rows(reports: Sequence[Report]) -> list[tuple[str, Cell]]:
    reserved = [kept.name for kept in reports[0].reservations]
    groups = list(dict.fromkeys(group.name for report in reports for group in report.groups))
    return [
        ("runs ended", lambda report: f"{report.ended} of {report.runs}"),
        ("larger than the cluster", lambda report: _count(sum(report.refused.values()))),
        ("not ended", lambda report: ", ".join(f"{count} {reason}" for reason, count in sorted(report.unfinished.items()))),
        ("makespan", lambda report: console.span(report.makespan_s)),
        ("GPUs in use", lambda report: f"{report.gpu_use:.1%}" if report.by_gpu else ""),
        ("CPUs in use", lambda report: f"{report.cpu_use:.1%}"),
        ("free GPUs of no use", lambda report: f"{report.fragmentation:.1%}" if report.by_gpu else ""),
        ("wait, mean", lambda report: _of_ended(report, report.wait.mean)),
        ("wait, median", lambda report: _of_ended(report, report.wait.median)),
        ("wait, p99", lambda report: _of_ended(report, report.wait.p99)),
        ("completion, mean", lambda report: _of_ended(report, report.completion.mean)),
        ("completion, median", lambda report: _of_ended(report, report.completion.median)),
        ("completion, p99", lambda report: _of_ended(report, report.completion.p99)),
        *((f"  completion of {name}", _of_group(name)) for name in groups),
        ("fairness of queues (Jain)", lambda report: f"{report.jain:.3f}" if len(report.queues) > 1 else ""),
        *((f"reserved for {name}, in use", _of_reserved(name)) for name in reserved),
        ("preemptions", lambda report: _count(report.losses.preemptions)),
        ("nodes lost", lambda report: _count(report.losses.node_losses)),
        ("GPU hours in vain", lambda report: f"{report.losses.gpu_seconds / 3600:.1f}" if report.losses.gpu_seconds else ""),
        ("promises kept", lambda report: f"{report.promises.kept} of {report.promises.given}" if report.promises.given else ""),
        ("promises broken", lambda report: ", ".join(f"{count} {cause}" for cause, count in report.promises.broken.items())),
        ("promises late unsaid", lambda report: _count(report.promises.late)),
        ("decided in", lambda report: console.span(report.timing.policy_s)),
        ("played in", lambda report: console.span(report.timing.wall_s)),
    ]


def _count(number: int) -> str:
    return str(number) if number else ""


def _of_ended(report: Report, span_s: float) -> str:
    return console.span(span_s) if report.ended else "-"


def _of_group(name: str) -> Cell:
    def cell(report: Report) -> str:
        found = next((group for group in report.groups if group.name == name), None)
        return "" if found is None else console.span(found.completion.mean)

    return cell


def _of_reserved(name: str) -> Cell:
    def cell(report: Report) -> str:
        found = next((kept for kept in report.reservations if kept.name == name), None)
        if found is None or not found.times:
            return "never began"
        what = "GPU hours" if found.by_gpu else "core hours"
        taken = f", {found.taken:.1f} taken by others" if found.taken else ""
        return f"{found.ratio:.1%} of {found.reserved:.1f} {what}{taken}"

    return cell

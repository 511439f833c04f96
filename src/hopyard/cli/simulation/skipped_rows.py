"""Skipped rows of a workload for people: grouped by reason, with the first few row names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hopyard.cli.terminal import console

if TYPE_CHECKING:
    from hopyard.simulator.report import SimulationReport
    from hopyard.simulator.workload import Workload

_MAX_KINDS = 5  # listed reasons
_MAX_ROWS_NAMED = 3  # of each reason


def count_text(number: int, what: str) -> str:
    """Returns `1 run` or `2 runs`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def print_skipped_rows(workload: Workload) -> None:
    """Prints the number, places and reasons of rows that cannot be simulated."""
    problems = workload.problems
    if not problems:
        return
    console.print_message(
        f"{len(problems)} of {count_text(len(problems) + len(workload.runs), 'row')} "
        f"{'is' if len(problems) == 1 else 'are'} skipped:"
    )
    for line in _grouped_lines(
        workload.row, ((workload.location_of(problem), problem.text) for problem in problems)
    ):
        console.print_message(line)


def too_large_lines(workload: Workload, added: str, report: SimulationReport) -> list[str]:
    """Returns text on rows that are larger than the cluster, and the resources they lack.
    added: the nodes that `--add` added to the cluster.
    """
    if not report.too_large:
        return []
    head = f"larger than the cluster{' ' if added else ''}{added}:"
    return [head, *_grouped_lines(workload.row, ((row.row, row.why) for row in report.too_large))]


def _grouped_lines(row: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields one line per reason, the most frequent first. rows: place and reason of each."""
    places: dict[str, list[str]] = {}
    for place, reason in rows:
        places.setdefault(reason, []).append(place)
    reasons = sorted(places.items(), key=lambda pair: -len(pair[1]))
    for reason, groups in reasons[:_MAX_KINDS]:
        yield f"  {_row_list(row, groups)}: {reason}"
    if len(reasons) > _MAX_KINDS:
        rest = sum(len(groups) for _, groups in reasons[_MAX_KINDS:])
        yield (
            f"  and {count_text(rest, 'row')} more for "
            f"{count_text(len(reasons) - _MAX_KINDS, 'other reason')}; use --json to list them"
        )


def _row_list(label: str, places: Sequence[str]) -> str:
    """Returns `line 4, 5, 6 and 2 more`; names are not shortened."""
    first, prefix = places[:_MAX_ROWS_NAMED], f"{label} "
    if all(place.startswith(prefix) for place in first):
        text = prefix + ", ".join(place.removeprefix(prefix) for place in first)
    else:
        text = ", ".join(first)
    return text + (f" and {len(places) - _MAX_ROWS_NAMED} more" if len(places) > _MAX_ROWS_NAMED else "")

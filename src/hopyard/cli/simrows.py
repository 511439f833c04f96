"""Rows of a workload that are not played, as people read it: those alike together, the first few by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hopyard.cli import console

if TYPE_CHECKING:
    from hopyard.simulator.report import Report
    from hopyard.simulator.workload import Workload

_KINDS = 5  # that are told one by one
_NAMED = 3  # of each


def counted(number: int, what: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def tell_problems(workload: Workload) -> None:
    """Rows that cannot be played: how many, where, and why."""
    problems = workload.problems
    if not problems:
        return
    console.say(
        f"{len(problems)} of {counted(len(problems) + len(workload.runs), 'row')} "
        f"{'is' if len(problems) == 1 else 'are'} not played:"
    )
    for line in _lines(workload.row, ((workload.place(problem), problem.text) for problem in problems)):
        console.say(line)


def too_large_lines(workload: Workload, added: str, report: Report) -> list[str]:
    """Which rows were larger than the cluster, and what they lack.
    added: what makes it another cluster than the one given."""
    if not report.too_large:
        return []
    head = f"larger than the cluster{' ' if added else ''}{added}:"
    return [head, *_lines(workload.row, ((one.row, one.why) for one in report.too_large))]


def _lines(row: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """rows: where each is, and why. Most frequent first."""
    places: dict[str, list[str]] = {}
    for place, why in rows:
        places.setdefault(why, []).append(place)
    kinds = sorted(places.items(), key=lambda pair: -len(pair[1]))
    for why, found in kinds[:_KINDS]:
        yield f"  {_listed(row, found)}: {why}"
    if len(kinds) > _KINDS:
        rest = sum(len(found) for _, found in kinds[_KINDS:])
        yield (
            f"  and {counted(rest, 'row')} more for {counted(len(kinds) - _KINDS, 'other reason')}; "
            "--json lists them"
        )


def _listed(row: str, places: Sequence[str]) -> str:
    """`line 4, 5, 6 and 2 more`; names are told as they are."""
    first, prefix = places[:_NAMED], f"{row} "
    if all(place.startswith(prefix) for place in first):
        told = prefix + ", ".join(place.removeprefix(prefix) for place in first)
    else:
        told = ", ".join(first)
    return told + (f" and {len(places) - _NAMED} more" if len(places) > _NAMED else "")

"""The workload of a simulation: runs with their times of submission and their true durations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hopyard.domain.run import RunSpec

DEFAULT_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)  # the default start of a workload


@dataclass(frozen=True, slots=True)
class WorkloadRun:
    """One run of a workload.

    at_s: seconds after the start of the workload. duration_s: how long it computes, known to the engine
    alone. line: its line in the file, 0 where there is none. name: its name in the file, where it has one.
    """

    spec: RunSpec
    at_s: float
    duration_s: float
    user: str = "user"
    line: int = 0
    name: str = ""

    def relative_to(self, first_s: float) -> WorkloadRun:
        """Returns the run with its time counted from `first_s`."""
        return replace(self, at_s=self.at_s - first_s)


@dataclass(frozen=True, slots=True)
class SkippedRun:
    """A row that is not simulated, and the reason."""

    line: int
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """runs: in the order of submission. begin: the moment of `at_s` 0. problems: rows that were left out.
    row: the word for a row. source: the file from which it was read, "" if there is none."""

    name: str
    runs: tuple[WorkloadRun, ...]
    begin: datetime = DEFAULT_BEGIN
    problems: tuple[SkippedRun, ...] = ()
    row: str = "line"
    source: str = ""

    def location_of(self, row: WorkloadRun | SkippedRun) -> str:
        """Returns the position of a row for messages: its name or its line; "" if it has neither."""
        return row.name or (f"{self.row} {row.line}" if row.line else "")


def sorted_workload(
    name: str,
    runs: Iterable[WorkloadRun],
    *,
    begin: datetime = DEFAULT_BEGIN,
    problems: Iterable[SkippedRun] = (),
) -> Workload:
    """Returns a workload whose runs are sorted by submission. Runs of one moment keep their order."""
    return Workload(name, tuple(sorted(runs, key=lambda run: run.at_s)), begin, tuple(problems))


def dated_workload(
    name: str, runs: Sequence[tuple[datetime, WorkloadRun]], problems: Iterable[SkippedRun] = ()
) -> Workload:
    """Returns a workload of runs with the moment of their submission; it begins with the first."""
    begin = min(at for at, _ in runs)
    return sorted_workload(
        name,
        (replace(run, at_s=(at - begin).total_seconds()) for at, run in runs),
        begin=begin,
        problems=problems,
    )

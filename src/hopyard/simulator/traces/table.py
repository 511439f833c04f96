"""Rows of a text table with their line numbers, so that an invalid row can be named and left out."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from hopyard.config.limits import MAX_SECONDS
from hopyard.config.suggest import unknown_name_hints
from hopyard.errors import SpecError
from hopyard.simulator.traces.files import not_text_error, reading
from hopyard.simulator.workload import SkippedRun

T = TypeVar("T")
MAX_COUNT = 10**9


class InvalidRow(Exception):
    """A row that cannot be simulated, with the reason as a message."""


class SkippedRow(Exception):
    """A row that is not a run of its own (a step of a job)."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One row, by the names of its columns. Every method raises InvalidRow."""

    line: int
    values: Mapping[str, str]

    def has(self, column: str) -> bool:
        return bool(self.values.get(column))

    def text(self, column: str, default: str | None = None) -> str:
        text = self.values.get(column) or default
        if text is None:
            raise InvalidRow(f"{column} is empty")
        return text

    def number(self, column: str, default: float | None = None) -> float:
        """Returns a finite number that is not below 0."""
        if not self.has(column) and default is not None:
            return default
        try:
            number = float(self.text(column))
        except ValueError:
            raise InvalidRow(f"{column}: `{self.text(column)[:40]}` is not a number") from None
        if not math.isfinite(number) or number < 0:
            raise InvalidRow(f"{column}: {self.text(column)[:40]} is not a number from 0 up")
        return number

    def integer(self, column: str, default: int | None = None, *, low: int = 0, high: int = MAX_COUNT) -> int:
        number = self.number(column, None if default is None else float(default))
        if number != int(number) or not low <= number <= high:
            raise InvalidRow(f"{column}: {self.text(column)[:40]} is not a whole number from {low} to {high}")
        return int(number)

    def seconds(self, column: str) -> float:
        """Returns a span of at most ten years."""
        seconds = self.number(column)
        if seconds > MAX_SECONDS:
            raise InvalidRow(f"{column}: {self.text(column)[:40]} seconds are more than ten years")
        return seconds

    def time(self, column: str) -> datetime:
        """Returns a time in ISO 8601, in UTC where no zone is given."""
        try:
            moment = datetime.fromisoformat(self.text(column))
        except ValueError:
            raise InvalidRow(f"{column}: `{self.text(column)[:40]}` is not a time") from None
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class TraceTable:
    """A file with a header line. columns: the names in the header, in lower case."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[int, Sequence[str]], ...]

    def require_columns(self, *columns: str, hint: str = "") -> None:
        """Raises SpecError if a column is missing."""
        for column in columns:
            if column not in self.columns:
                hints = unknown_name_hints(column, self.columns, subject="it has")
                raise SpecError(
                    f"{self.name}: line 1: there is no column `{column}`",
                    hints=(hint, *hints) if hint else hints,
                )

    def convert_rows(self, convert: Callable[[TraceRow], T]) -> tuple[list[T], list[SkippedRun]]:
        """Returns the converted rows, and the rows that `convert` refused. Raises SpecError when no row is
        left."""
        converted: list[T] = []
        problems: list[SkippedRun] = []
        for line, cells in self.rows:
            if len(cells) != len(self.columns):
                problems.append(SkippedRun(line, f"{len(cells)} values, {len(self.columns)} columns"))
                continue
            try:
                converted.append(
                    convert(
                        TraceRow(line, dict(zip(self.columns, (cell.strip() for cell in cells), strict=True)))
                    )
                )
            except InvalidRow as error:
                problems.append(SkippedRun(line, str(error)))
            except SkippedRow:
                continue
        if not converted:
            raise self._no_rows_error(problems)
        return converted, problems

    def _no_rows_error(self, problems: Sequence[SkippedRun]) -> SpecError:
        """Returns the error for a table without a usable row."""
        if problems:
            hint = (
                f"correct it, and those like it: none of its {len(problems)} rows can be used"
                if len(problems) > 1
                else "correct it: there is no other row"
            )
            return SpecError(f"{self.name}: line {problems[0].line}: {problems[0].text}", hints=(hint,))
        if self.rows:
            return SpecError(
                f"{self.name}: it holds steps of jobs alone",
                hints=("write it with `sacct -X`, which tells of the jobs themselves",),
            )
        return SpecError(
            f"{self.name}: there are no rows below its head",
            hints=("each line below the head is one row, with a value for each column",),
        )


def read_table(
    file: Path, *, delimiter: str = ",", head: str = "its first line names the columns"
) -> TraceTable:
    """head: the hint for a missing header. Raises SpecError when the file cannot be read as text in UTF-8
    with a header."""
    rows = _rows(file, delimiter)
    first = next(rows, None)
    if first is None:
        raise SpecError(f"{file}: line 1: the file is empty", hints=(head,))
    columns = tuple(column.strip().lower() for column in first[1])
    if len(set(columns)) < len(columns):
        duplicate = next(column for column in columns if columns.count(column) > 1)
        raise SpecError(f"{file}: line 1: the column `{duplicate}` stands there twice", hints=(head,))
    return TraceTable(str(file), columns, tuple(rows))


def _rows(file: Path, delimiter: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Yields the lines that are not blank. Only tables with commas use quotes; the pipe format of Slurm has
    none."""
    line = 0
    try:
        with reading(file), file.open(encoding="utf-8-sig", newline="") as stream:
            reader = (
                csv.reader(stream, strict=True)
                if delimiter == ","
                else csv.reader(stream, delimiter=delimiter, quoting=csv.QUOTE_NONE)
            )
            for cells in reader:
                line = reader.line_num
                if any(cell.strip() for cell in cells):
                    yield line, cells
    except UnicodeDecodeError as error:
        raise not_text_error(file, line + 1) from error
    except csv.Error as error:
        raise SpecError(
            f"{file}: line {line + 1}: {error}", hints=("a quote that opens has to close",)
        ) from error


def raise_first_problem(name: str, problems: Sequence[SkippedRun]) -> None:
    """Raises SpecError with the first problem, of a file of which no row may be left out."""
    if problems:
        raise SpecError(f"{name}: line {problems[0].line}: {problems[0].text}")

"""Our own format for workloads, as a table (CSV) or in YAML.

    submit,duration,gpus,replicas,cpus,memory,user,queue,priority,script,limit
    0,2h,A100:8,2,64,256G,alice,vision,50,train.py,3h

Only `submit` and `duration` are needed. `submit` is in seconds (or with units: 90m) after the beginning, or a
moment as ISO 8601 writes it, the same in all rows. In YAML every entry of `runs` has the same keys, and
`count: 10, every: 60s` repeats one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from hopyard.config import units
from hopyard.config.queues import HIGHEST, LOWEST
from hopyard.config.reader import Section, read_yaml, section
from hopyard.domain.resources import WHOLE_GPU, Resources
from hopyard.domain.run import MAX_REPLICAS
from hopyard.errors import SpecError
from hopyard.simulator.traces.shape import CPU_PER_GPU, MOST_GPUS, spec_of
from hopyard.simulator.traces.table import MOST_COUNT, BadRow, Row, read_table
from hopyard.simulator.workload import EPOCH, Submission, Workload, dated

COLUMNS = (
    "submit",
    "duration",
    "gpus",
    "replicas",
    "cpus",
    "memory",
    "user",
    "queue",
    "priority",
    "script",
    "limit",
)
NEEDED = ("submit", "duration")
T = TypeVar("T")


def read(file: Path, *, replica_gpus: int) -> Workload:  # noqa: ARG001
    table = read_table(file)
    table.need(*NEEDED)
    for column in table.columns:
        if column not in COLUMNS:
            raise SpecError(
                f"{file}: line 1: there is no column `{column}`", hints=(f"columns: {', '.join(COLUMNS)}",)
            )
    alike = _Alike(table.name)

    def make(row: Row) -> tuple[datetime, Submission]:
        read = _submission(row, row.text("submit"))
        alike.check(row.text("submit"), f"line {row.line}")
        return read

    made, problems = table.each(make)
    return dated(file.stem, made, problems)


def read_listed(file: Path, *, replica_gpus: int) -> Workload:  # noqa: ARG001
    """The same in YAML. Raises SpecError for whatever it does not know: nothing is left out."""
    top = read_yaml(file).only("runs", "name")
    made: list[tuple[datetime, Submission]] = []
    alike = _Alike(top.file)
    for index, value in top.items("runs"):
        one = section(top.file, top.at(f"runs.{index}"), value).only(*COLUMNS, "count", "every")
        made += _repeated(one)
        alike.check(str(one.values["submit"]), one.path)
    if not made:
        raise top.fail("runs", "there are none", "for example `runs: [{submit: 0, duration: 2h, gpus: 1}]`")
    return dated(top.text("name", file.stem), made)


class _Alike:
    """Sees to it that all rows tell their submission in the same kind: seconds and dates on one clock would
    be years apart."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._first: tuple[bool, str] | None = None

    def check(self, submit: str, place: str) -> None:
        """Raises SpecError, which refuses the whole file: which of the two kinds was meant cannot be told."""
        dated = _is_date(submit)
        if self._first is None:
            self._first = dated, place
        elif self._first[0] != dated:
            kinds = ("a time after the beginning", "a date")
            raise SpecError(
                f"{self._file}: {place}: submit: `{submit[:40]}` is {kinds[dated]}, and "
                f"{self._first[1]} has {kinds[not dated]}",
                hints=("write all of them in seconds, or all as dates",),
            )


def _repeated(one: Section) -> Iterator[tuple[datetime, Submission]]:
    row = Row(0, {key: str(value) for key, value in one.values.items() if value is not None})
    count = one.whole("count", 1, low=1, high=1_000_000)
    every_s = one.amount("every", units.parse_time) or 0.0
    if count > 1 and not every_s:
        raise one.fail("every", "missing", "how long after each other they are submitted: `every: 60s`")
    try:
        at, made = _submission(row, row.text("submit"))
    except BadRow as bad:
        raise SpecError(
            f"{one.file}: {one.path}: {bad}", hints=(f"keys: {', '.join([*COLUMNS, 'count', 'every'])}",)
        ) from None
    for turn in range(count):
        yield datetime.fromtimestamp(at.timestamp() + turn * every_s, UTC), replace(made, name=one.path)


def _submission(row: Row, submit: str) -> tuple[datetime, Submission]:
    duration_s = _amount(row, "duration", units.parse_time)
    model, gpus, share = _gpus(row)
    cpus = _amount(row, "cpus", units.parse_cpus) if row.has("cpus") else max(gpus, 1) * CPU_PER_GPU
    memory = _amount(row, "memory", units.parse_memory) if row.has("memory") else 0
    spec = spec_of(
        "trace",
        Resources(cpus, memory, gpus, (model,) if model else (), gpu_milli=share),
        replicas=row.whole("replicas", 1, low=1, high=MAX_REPLICAS),
        script=row.text("script", ""),
        queue=row.text("queue", ""),
        priority=row.whole("priority", low=LOWEST, high=HIGHEST) if row.has("priority") else None,
        limit_s=_amount(row, "limit", units.parse_time) if row.has("limit") else None,
    )
    return _moment(row, submit), Submission(spec, 0.0, duration_s, row.text("user", "user"), row.line)


def _amount(row: Row, column: str, parse: Callable[[str], T]) -> T:
    """A value with a unit."""
    try:
        return parse(row.text(column))
    except SpecError as bad:
        _, _, problem = bad.message.partition(": ")
        raise BadRow(f"{column}: {problem or bad.message}") from None


def _gpus(row: Row) -> tuple[str | None, int, int]:
    """Model, whole GPUs, thousandths of one."""
    text = row.text("gpus", "0")
    try:
        share = float(text)
    except ValueError:
        return (*_amount(row, "gpus", units.parse_gpus), 0)
    if 0 < share < 1:
        return None, 0, max(round(share * WHOLE_GPU), 1)
    return None, row.whole("gpus", 0, high=MOST_GPUS), 0


def _is_date(text: str) -> bool:
    """Whether it is meant as a moment; `-5` and `1e-3` are numbers."""
    try:
        float(text)
    except ValueError:
        return "-" in text
    return False


def _moment(row: Row, text: str) -> datetime:
    """Seconds, a span, or a moment."""
    try:
        seconds = float(text)
    except ValueError:
        if _is_date(text):
            return row.moment("submit")
        seconds = _amount(row, "submit", units.parse_time)
    if not 0 <= seconds < MOST_COUNT:
        raise BadRow(f"submit: {text[:40]} is not a time from 0 on")
    return datetime.fromtimestamp(EPOCH.timestamp() + seconds, UTC)

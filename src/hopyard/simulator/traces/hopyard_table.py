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
from hopyard.config.limits import MAX_PRIORITY, MIN_PRIORITY
from hopyard.config.yaml_section import YamlSection, as_section, read_yaml
from hopyard.domain.resources import WHOLE_GPU, Resources
from hopyard.domain.run import MAX_REPLICAS
from hopyard.errors import SpecError
from hopyard.simulator.traces.run_spec import CPU_PER_GPU, MAX_GPUS, trace_run_spec
from hopyard.simulator.traces.table import MAX_COUNT, InvalidRow, TraceRow, read_table
from hopyard.simulator.workload import DEFAULT_BEGIN, Workload, WorkloadRun, dated_workload

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
REQUIRED_COLUMNS = ("submit", "duration")
T = TypeVar("T")


def read_trace(file: Path, *, replica_gpus: int) -> Workload:  # noqa: ARG001
    table = read_table(file)
    table.require_columns(*REQUIRED_COLUMNS)
    for column in table.columns:
        if column not in COLUMNS:
            raise SpecError(
                f"{file}: line 1: there is no column `{column}`", hints=(f"columns: {', '.join(COLUMNS)}",)
            )
    time_format = _TimeFormatCheck(table.name)

    def convert(row: TraceRow) -> tuple[datetime, WorkloadRun]:
        run = _to_workload_run(row, row.text("submit"))
        time_format.check(row.text("submit"), f"line {row.line}")
        return run

    runs, problems = table.convert_rows(convert)
    return dated_workload(file.stem, runs, problems)


def read_yaml_trace(file: Path, *, replica_gpus: int) -> Workload:  # noqa: ARG001
    """Reads the same table in YAML. Raises SpecError for an unknown key or value: nothing is left out."""
    top = read_yaml(file).check_keys("runs", "name")
    runs: list[tuple[datetime, WorkloadRun]] = []
    time_format = _TimeFormatCheck(top.file)
    for index, value in top.items("runs"):
        section = as_section(top.file, top.path_of(f"runs.{index}"), value).check_keys(
            *COLUMNS, "count", "every"
        )
        runs += _repeat_section(section)
        time_format.check(str(section.values["submit"]), section.path)
    if not runs:
        raise top.error("runs", "there are none", "for example `runs: [{submit: 0, duration: 2h, gpus: 1}]`")
    return dated_workload(top.text("name", file.stem), runs)


class _TimeFormatCheck:
    """Checks that all rows give their submission in the same kind. Seconds and dates on one clock would be
    years apart."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._first_format: tuple[bool, str] | None = None

    def check(self, submit: str, position: str) -> None:
        """Raises SpecError, which refuses the whole file: the intended kind is unknown."""
        is_dated = _is_date(submit)
        if self._first_format is None:
            self._first_format = is_dated, position
        elif self._first_format[0] != is_dated:
            kinds = ("a time after the beginning", "a date")
            raise SpecError(
                f"{self._file}: {position}: submit: `{submit[:40]}` is {kinds[is_dated]}, and "
                f"{self._first_format[1]} has {kinds[not is_dated]}",
                hints=("write all of them in seconds, or all as dates",),
            )


def _repeat_section(section: YamlSection) -> Iterator[tuple[datetime, WorkloadRun]]:
    row = TraceRow(0, {key: str(value) for key, value in section.values.items() if value is not None})
    count = section.integer("count", 1, low=1, high=1_000_000)
    every_s = section.amount("every", units.parse_time) or 0.0
    if count > 1 and not every_s:
        raise section.error("every", "missing", "how long after each other they are submitted: `every: 60s`")
    try:
        submit_at, run = _to_workload_run(row, row.text("submit"))
    except InvalidRow as error:
        raise SpecError(
            f"{section.file}: {section.path}: {error}",
            hints=(f"keys: {', '.join([*COLUMNS, 'count', 'every'])}",),
        ) from None
    for repetition in range(count):
        yield (
            datetime.fromtimestamp(submit_at.timestamp() + repetition * every_s, UTC),
            replace(run, name=section.path),
        )


def _to_workload_run(row: TraceRow, submit: str) -> tuple[datetime, WorkloadRun]:
    duration_s = _parse_amount(row, "duration", units.parse_time)
    model, gpus, share = _parse_gpus(row)
    cpus = _parse_amount(row, "cpus", units.parse_cpus) if row.has("cpus") else max(gpus, 1) * CPU_PER_GPU
    memory = _parse_amount(row, "memory", units.parse_memory) if row.has("memory") else 0
    spec = trace_run_spec(
        "trace",
        Resources(cpus, memory, gpus, (model,) if model else (), gpu_milli=share),
        replicas=row.integer("replicas", 1, low=1, high=MAX_REPLICAS),
        script=row.text("script", ""),
        queue=row.text("queue", ""),
        priority=row.integer("priority", low=MIN_PRIORITY, high=MAX_PRIORITY)
        if row.has("priority")
        else None,
        limit_s=_parse_amount(row, "limit", units.parse_time) if row.has("limit") else None,
    )
    return _parse_time(row, submit), WorkloadRun(spec, 0.0, duration_s, row.text("user", "user"), row.line)


def _parse_amount(row: TraceRow, column: str, parse: Callable[[str], T]) -> T:
    """Returns a value with a unit."""
    try:
        return parse(row.text(column))
    except SpecError as error:
        _, _, problem = error.message.partition(": ")
        raise InvalidRow(f"{column}: {problem or error.message}") from None


def _parse_gpus(row: TraceRow) -> tuple[str | None, int, int]:
    """Returns the model, the whole GPUs, and the thousandths of one GPU."""
    text = row.text("gpus", "0")
    try:
        share = float(text)
    except ValueError:
        return (*_parse_amount(row, "gpus", units.parse_gpus), 0)
    if 0 < share < 1:
        return None, 0, max(round(share * WHOLE_GPU), 1)
    return None, row.integer("gpus", 0, high=MAX_GPUS), 0


def _is_date(text: str) -> bool:
    """Returns whether the text is a moment; `-5` and `1e-3` are numbers."""
    try:
        float(text)
    except ValueError:
        return "-" in text
    return False


def _parse_time(row: TraceRow, text: str) -> datetime:
    """Returns the moment of seconds, a span, or a date."""
    try:
        seconds = float(text)
    except ValueError:
        if _is_date(text):
            return row.time("submit")
        seconds = _parse_amount(row, "submit", units.parse_time)
    if not 0 <= seconds < MAX_COUNT:
        raise InvalidRow(f"submit: {text[:40]} is not a time from 0 on")
    return datetime.fromtimestamp(DEFAULT_BEGIN.timestamp() + seconds, UTC)

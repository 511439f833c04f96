"""Detects the format of a workload file, and reads the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from hopyard.config.suggest import unknown_name_hints
from hopyard.errors import SpecError
from hopyard.simulator.traces import hopyard_runs, hopyard_table, openb, philly, pollux, sacct
from hopyard.simulator.traces.files import not_text_error, reading
from hopyard.simulator.workload import Workload


class TraceReader(Protocol):
    def __call__(self, file: Path, /, *, replica_gpus: int) -> Workload: ...


FORMATS: dict[str, TraceReader] = {
    "csv": hopyard_table.read_trace,
    "yaml": hopyard_table.read_yaml_trace,
    "sacct": sacct.read_trace,
    "hopyard": hopyard_runs.read_trace,
    "philly": philly.read_trace,
    "openb": openb.read_trace,
    "pollux": pollux.read_trace,
}
_FORMAT_BY_COLUMNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("philly", philly.COLUMNS),
    ("pollux", pollux.COLUMNS),
    ("openb", openb.COLUMNS),
    ("csv", hopyard_table.REQUIRED_COLUMNS),
)


def read_workload(file: Path, *, format: str | None = None, replica_gpus: int = 8) -> Workload:
    """Returns the runs of a file. replica_gpus: the most GPUs of one replica, for a trace that has only the
    GPUs of each run.

    Raises SpecError for a file that cannot be read, that is in no known format, or that has no row to
    simulate.
    """
    if format is not None and format not in FORMATS:
        raise SpecError(
            f"--format: there is no format `{format}`",
            hints=unknown_name_hints(format, FORMATS, subject="formats"),
        )
    return replace(FORMATS[format or detect_format(file)](file, replica_gpus=replica_gpus), source=str(file))


def detect_format(file: Path) -> str:
    """Returns the format, from the name and the first line of the file. Raises SpecError."""
    if file.suffix.lower() in (".yaml", ".yml"):
        return "yaml"
    head = _first_line(file)
    if head.lstrip().startswith(("[", "{")):
        return "hopyard"
    if "|" in head:
        return "sacct"
    columns = {column.strip().strip('"').lower() for column in head.split(",")}
    for name, required in _FORMAT_BY_COLUMNS:
        if columns.issuperset(required):
            return name
    shown = head.strip()[:60]
    raise SpecError(
        f"{file}: line 1: `{shown}` is the head of no format that is known",
        hints=(f"say which it is: --format {'|'.join(FORMATS)}", "`hop simulate --help` tells of our own"),
    )


def _first_line(file: Path) -> str:
    try:
        with reading(file), file.open("rb") as stream:
            return stream.readline(64 * 1024).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise not_text_error(file, 1) from None

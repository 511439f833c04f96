"""Which format a file is in, and reading it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from hopyard.config.suggest import hints_for
from hopyard.errors import SpecError
from hopyard.simulator.traces import history, openb, philly, plain, pollux, sacct
from hopyard.simulator.traces.files import not_text, readable
from hopyard.simulator.workload import Workload


class Reader(Protocol):
    def __call__(self, file: Path, /, *, replica_gpus: int) -> Workload: ...


FORMATS: dict[str, Reader] = {
    "csv": plain.read,
    "yaml": plain.read_listed,
    "sacct": sacct.read,
    "hopyard": history.read,
    "philly": philly.read,
    "openb": openb.read,
    "pollux": pollux.read,
}
_BY_COLUMNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("philly", philly.COLUMNS),
    ("pollux", pollux.COLUMNS),
    ("openb", openb.COLUMNS),
    ("csv", plain.NEEDED),
)


def read_workload(file: Path, *, format: str | None = None, replica_gpus: int = 8) -> Workload:
    """The runs of a file. replica_gpus: where a trace says only how many GPUs a run had, it comes as replicas
    of at most so many.

    Raises SpecError for a file that cannot be read, that is in no known format, or of which no row can be
    played.
    """
    if format is not None and format not in FORMATS:
        raise SpecError(
            f"--format: there is no format `{format}`", hints=hints_for(format, FORMATS, what="formats")
        )
    return replace(FORMATS[format or detect(file)](file, replica_gpus=replica_gpus), source=str(file))


def detect(file: Path) -> str:
    """The format, from the file's name and its first line. Raises SpecError."""
    if file.suffix.lower() in (".yaml", ".yml"):
        return "yaml"
    head = _head(file)
    if head.lstrip().startswith(("[", "{")):
        return "hopyard"
    if "|" in head:
        return "sacct"
    columns = {column.strip().strip('"').lower() for column in head.split(",")}
    for name, needed in _BY_COLUMNS:
        if columns.issuperset(needed):
            return name
    shown = head.strip()[:60]
    raise SpecError(
        f"{file}: line 1: `{shown}` is the head of no format that is known",
        hints=(f"say which it is: --format {'|'.join(FORMATS)}", "`hop simulate --help` tells of our own"),
    )


def _head(file: Path) -> str:
    try:
        with readable(file), file.open("rb") as stream:
            return stream.readline(64 * 1024).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise not_text(file, 1) from None

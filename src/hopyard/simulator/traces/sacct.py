"""Reads past jobs from the output of Slurm's `sacct --parsable2`.

    sacct -a -X -P -S 2025-01-01 -o
    JobID,JobName,User,Account,Partition,Submit,Eligible,Start,End,ElapsedRaw,Timelimit,NNodes,ReqTRES,AllocTRES,State

Other columns and any order are allowed, if the submission is there and the duration can be derived. A run's
queue is its account, or its partition where there is none. The zone of times is ignored: only their
differences matter.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from hopyard.config.units import GIB, KIB, MIB, TIB
from hopyard.domain.resources import Resources
from hopyard.domain.run import MAX_REPLICAS
from hopyard.errors import SpecError
from hopyard.simulator.traces.run_spec import MAX_GPUS, split_gpus, trace_run_spec
from hopyard.simulator.traces.table import InvalidRow, SkippedRow, TraceRow, read_table
from hopyard.simulator.workload import Workload, WorkloadRun, dated_workload

COLUMNS = ("jobid", "submit")
_TIME_SPAN = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,2})(?:\.\d+)?")
_MEMORY_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([KMGTP]?)([nc]?)", re.IGNORECASE)
_SIZE_UNITS = {"": MIB, "K": KIB, "M": MIB, "G": GIB, "T": TIB, "P": 1024 * TIB}
_UNKNOWN_VALUES = ("unknown", "none", "n/a", "invalid")
_UNLIMITED_VALUES = ("unlimited", "partition_limit", "")
_UNFINISHED_STATES = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "CONFIGURING", "COMPLETING", "RESIZING")


def read_trace(file: Path, *, replica_gpus: int) -> Workload:
    table = read_table(
        file,
        delimiter="|",
        head="write it with `sacct -P`, and without `-n`: its first line names the columns",
    )
    if len(table.columns) < 2:
        raise SpecError(
            f"{file}: line 1: there are no columns between `|`",
            hints=("write it with `sacct -P`, and without `-n`",),
        )
    table.require_columns(*COLUMNS, hint="name it in `sacct -o`, and keep the head (no `-n`)")
    if not {"elapsedraw", "elapsed", "end"} & set(table.columns):
        table.require_columns(
            "elapsedraw", hint="name ElapsedRaw (or Elapsed, or Start and End) in `sacct -o`"
        )
    runs, problems = table.convert_rows(lambda row: _to_workload_run(row, replica_gpus))
    return dated_workload(file.stem, runs, problems)


def _to_workload_run(row: TraceRow, replica_gpus: int) -> tuple[datetime, WorkloadRun]:
    if "." in row.text("jobid"):
        raise SkippedRow  # a step of a job
    state = row.text("state", "COMPLETED").split()[0].upper().rstrip("+")
    if state in _UNFINISHED_STATES:
        raise InvalidRow(f"it is {state.lower()}: how long it takes is not known")
    duration_s = _duration_s(row)
    if duration_s <= 0:
        raise InvalidRow(f"it never ran ({state.lower()})")
    resources, replicas = _requested_resources(row, replica_gpus)
    spec = trace_run_spec(
        "slurm",
        resources,
        replicas=replicas,
        script=row.text("jobname", ""),
        queue=row.text("account", "") or row.text("partition", ""),
        limit_s=_limit_s(row),
    )
    # the wait for another job or for the begin time does not count
    submit_column = "eligible" if _is_known(row, "eligible") else "submit"
    return row.time(submit_column), WorkloadRun(spec, 0.0, duration_s, row.text("user", "user"), row.line)


def _is_known(row: TraceRow, column: str) -> bool:
    return row.has(column) and row.text(column).lower() not in _UNKNOWN_VALUES


def _duration_s(row: TraceRow) -> float:
    if row.has("elapsedraw"):
        return row.seconds("elapsedraw")
    if row.has("elapsed"):
        return span_s(row.text("elapsed"), "elapsed")
    for column in ("start", "end"):
        if not _is_known(row, column):
            raise InvalidRow(f"it has no {column}: how long it takes is not known")
    return (row.time("end") - row.time("start")).total_seconds()


def _limit_s(row: TraceRow) -> float | None:
    if row.has("timelimitraw") and row.text("timelimitraw").isdecimal():
        return row.integer("timelimitraw") * 60.0 or None
    limit = row.text("timelimit", "").lower()
    if limit in _UNLIMITED_VALUES or limit in _UNKNOWN_VALUES:
        return None
    try:
        return span_s(limit, "timelimit")
    except InvalidRow:  # the duration is known all the same
        return None


def span_s(text: str, column: str) -> float:
    """`[days-][hours:]minutes:seconds`. Raises InvalidRow."""
    match = _TIME_SPAN.fullmatch(text)
    if match is None:
        raise InvalidRow(f"{column}: `{text[:40]}` is not a span, as in 1-02:30:00")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _requested_resources(row: TraceRow, replica_gpus: int) -> tuple[Resources, int]:
    """Returns the request of one replica, and the number of replicas: one per node, or more where a simulated
    node has fewer GPUs.

    Trackable resources (TRES) are those of the whole job.
    """
    tres = _parse_tres(row.text("reqtres", "") or row.text("alloctres", ""))
    nodes = max(_parse_count(tres.get("node"), "node") or row.integer("nnodes", 1), 1)
    cpus = (
        _parse_count(tres.get("cpu"), "cpu")
        or row.integer("ncpus", 0)
        or row.integer("reqcpus", 0)
        or row.integer("alloccpus", 0)
        or nodes
    )
    gpus = _parse_count(tres.get("gres/gpu"), "gres/gpu")
    models = {
        name.partition(":")[2]: _parse_count(value, name)
        for name, value in tres.items()
        if name.startswith("gres/gpu:")
    }
    gpus = gpus or sum(models.values())
    if nodes > MAX_REPLICAS or gpus > MAX_GPUS:
        raise InvalidRow(
            f"it had {nodes} nodes and {gpus} GPUs: more than {MAX_REPLICAS} nodes or {MAX_GPUS} GPUs "
            "are not played"
        )
    replicas = (
        nodes if gpus % nodes == 0 and gpus // nodes <= replica_gpus else split_gpus(gpus, replica_gpus)
    )
    memory = (
        _parse_memory(tres["mem"], 1, 1)
        if "mem" in tres
        else _parse_memory(row.text("reqmem", "0"), cpus, nodes)
    )
    return _resources_per_replica(replicas, cpus, memory, gpus, tuple(sorted(models))), replicas


def _resources_per_replica(
    replicas: int, cpus: int, memory: int, gpus: int, models: tuple[str, ...]
) -> Resources:
    return Resources(
        -(-cpus * 1000 // replicas), memory // replicas, gpus // replicas, models if gpus else ()
    )


def _parse_tres(text: str) -> dict[str, str]:
    """Returns `billing=8,cpu=8,gres/gpu:a100=2,mem=64G,node=1` by name, in lower case. Raises InvalidRow."""
    resources: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise InvalidRow(f"`{part[:40]}` is not a resource, as in cpu=8")
        resources[name.strip().lower()] = value.strip()
    return resources


def _parse_count(text: str | None, name: str) -> int:
    if not text:
        return 0
    if not text.isdecimal() or len(text) > 9:
        raise InvalidRow(f"{name}: `{text[:40]}` is not a whole number")
    return int(text)


def _parse_memory(text: str, cpus: int, nodes: int) -> int:
    """Returns the bytes of the whole job: `64G`; `4Gc` is for each CPU, `16Gn` for each node. Without a unit:
    MiB. Raises InvalidRow."""
    match = _MEMORY_SIZE.fullmatch(text)
    if match is None:
        raise InvalidRow(f"memory: `{text[:40]}` is not an amount, as in 64G")
    number, unit, scope = match.groups()
    multiplier = {"c": cpus, "n": nodes}.get(scope.lower(), 1)
    return int(float(number) * _SIZE_UNITS[unit.upper()]) * multiplier

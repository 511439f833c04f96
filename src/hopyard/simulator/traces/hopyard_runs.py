"""Reads runs as the API and `hop ps -a --json` list them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from hopyard.domain.run import RunSpec
from hopyard.errors import SpecError
from hopyard.simulator.traces.files import reading
from hopyard.simulator.workload import SkippedRun, Workload, WorkloadRun, dated_workload


def read_trace(file: Path, *, replica_gpus: int) -> Workload:  # noqa: ARG001
    """Reads a file with a list of runs."""
    try:
        with reading(file):
            value = json.loads(file.read_bytes())
    except json.JSONDecodeError as error:
        raise SpecError(
            f"{file}: line {error.lineno}: not JSON: {error.msg}", hints=("`hop ps -a --json` writes it",)
        ) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise SpecError(
            f"{file}: not JSON that can be read: {error}", hints=("`hop ps -a --json` writes it",)
        ) from error
    runs = value.get("runs") if isinstance(value, dict) else value
    if not isinstance(runs, list):
        raise SpecError(f"{file}: line 1: it holds no list of runs", hints=("`hop ps -a --json` writes it",))
    return workload_of_runs(runs, name=file.stem, source=str(file))


def workload_of_runs(runs: Sequence[Any], *, name: str, source: str) -> Workload:
    """Returns the runs that ended, with the time for which they ran. They keep their names; their line is
    their position in the list, from 1.

    A run of several attempts counts from its first start to its end. Raises SpecError when no run can be
    simulated.
    """
    dated_runs: list[tuple[datetime, WorkloadRun]] = []
    problems: list[SkippedRun] = []
    for position, run in enumerate(runs, start=1):
        try:
            dated_runs.append(_to_workload_run(run, position))
        except (KeyError, TypeError, AttributeError, ValueError, msgspec.ValidationError) as error:
            problems.append(
                SkippedRun(
                    position,
                    str(error) if not isinstance(error, KeyError) else f"it has no {error}",
                    _run_name(run),
                )
            )
    if not dated_runs:
        reason = (
            f"{problems[0].name or f'run {problems[0].line}'}: {problems[0].text}"
            if problems
            else "there are no runs"
        )
        raise SpecError(f"{source}: {reason}", hints=("runs that ended can be played",))
    return replace(dated_workload(name, dated_runs, problems), row="run", source=source)


def _run_name(run: Any) -> str:
    """Returns USER/PROJECT/NUMBER; "" if the run has no name."""
    name = run.get("name") if isinstance(run, dict) else None
    return name if isinstance(name, str) else ""


def _to_workload_run(run: Mapping[str, Any], position: int) -> tuple[datetime, WorkloadRun]:
    if run.get("offline"):
        raise ValueError("it was recorded without a server, and never waited")
    if not run.get("started_at") or not run.get("ended_at"):
        raise ValueError(f"it is {run['phase']}, and did not run to an end")
    spec = msgspec.convert(_spec(run["spec"]), RunSpec)
    duration_s = (_parse_time(run["ended_at"]) - _parse_time(run["started_at"])).total_seconds()
    return _parse_time(run["submitted_at"]), WorkloadRun(
        spec, 0.0, max(duration_s, 0.0), run["name"].partition("/")[0], position, run["name"]
    )


def _spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns only what decides where and when the run executes: no code, no data to resume from, no
    secrets."""
    fields = ("project", "roles", "queue", "priority", "preemptible", "topology", "time_limit_s")
    return {key: spec[key] for key in fields if key in spec}


def _parse_time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment

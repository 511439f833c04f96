"""Columns of `hop ps --columns`: fields of a run, its metrics, parameters and tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hopyard.cli.run_text import duration_s
from hopyard.cli.terminal import console
from hopyard.domain.ids import RunName
from hopyard.domain.metric_values import decode_value
from hopyard.domain.run import script_of
from hopyard.domain.run_query import (
    FIELDS,
    QueryValue,
    RunValues,
    field_name,
    run_fields,
    unknown_names,
)
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api


def parse_columns(texts: Sequence[str]) -> list[str]:
    """Returns the names of `--columns a,b --columns c`. Raises SpecError for an empty name."""
    names = [name.strip().strip("`") for text in texts for name in text.split(",")]
    if "" in names:
        raise SpecError(
            "--columns: a name is empty", hints=("for example --columns name,phase,params.lr,val_acc",)
        )
    return names


def listed_values(run: api.RunOut) -> RunValues:
    """Returns the values of a listed run by name. A listing truncates long params, tags and metrics."""
    spec = run["spec"]
    exit_ = run.get("exit")
    fields = run_fields(
        run_id=run["id"],
        name=RunName(*_name_parts(run["name"])),
        label=spec.get("label") or "",
        phase=run["phase"],
        queue=spec.get("queue") or "",
        priority=spec.get("priority") or 0,
        datasets=[dataset["name"] for dataset in spec["datasets"]],
        script=f":{script_text(run)}",
        reason=exit_["reason"] if exit_ else run.get("hold_detail") or "",
        position=run.get("position"),
        note=run.get("note") or "",
        archived=bool(run.get("archived")),
        submitted_at=_moment(run["submitted_at"]) or datetime.now(UTC),
        started_at=_moment(run.get("started_at")),
        ended_at=_moment(run.get("ended_at")),
        served_s=duration_s(run),
        now=datetime.now(UTC),
    )
    latest = {name: decode_value(pair[1]) for name, pair in (run.get("latest") or {}).items()}
    summary = {name: decode_value(value) for name, value in (run.get("summary") or {}).items()}
    return RunValues(fields, listed_params(run), latest, summary, spec.get("tags") or {})


def listed_params(run: api.RunOut) -> dict[str, Any]:
    """Returns the params of a run: those of the submission, and those that its script reported."""
    return {**(run["spec"].get("params") or {}), **(run.get("params") or {})}


def script_text(run: api.RunOut) -> str:
    """Returns the script of the first role: `train.py`; "" for a study."""
    roles = run["spec"]["roles"]
    return "" if run["spec"].get("study") or not roles else script_of(roles[0]["command"])


def params_text(params: Mapping[str, Any]) -> str:
    """Returns `lr=0.1 batch_size=64`."""
    return " ".join(f"{name}={_cell(name, value)}" for name, value in params.items())


def unknown_columns(runs: list[api.RunOut], names: Sequence[str]) -> list[str]:
    """Returns a sentence about each column that none of these runs has."""
    if not runs:
        return []
    missing = unknown_names(names, map(listed_values, runs))
    return [
        f"--columns: no listed run has `{name}`" + (f"; did you mean `{closest}`?" if closest else "")
        for name, closest in missing.items()
    ]


def column_table(runs: list[api.RunOut], names: Sequence[str], *, width: int | None) -> list[str]:
    """Returns the lines of a table with these columns, head first. A missing value is an empty cell."""
    rows = []
    numeric = set(range(len(names)))
    for run in runs:
        values = listed_values(run)
        row = []
        for index, name in enumerate(names):
            _, value = values.find(name)
            if isinstance(value, str | bool):
                numeric.discard(index)
            field = field_name(name)
            cell = console.paint_phase(run["phase"]) if field == "phase" else _cell(field, value)
            row.append(cell)
        rows.append(row)
    head = [name.upper() if field_name(name) in FIELDS else name for name in names]
    return console.format_table(head, rows, right=tuple(sorted(numeric)), width=width)


def _cell(name: str, value: QueryValue) -> str:
    if value is None:
        return ""
    if name in ("age", "took") and isinstance(value, int | float):
        return console.format_duration(value)
    if name in ("submitted", "started", "ended") and isinstance(value, int | float):
        return datetime.fromtimestamp(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, bool):
        return str(value).lower()
    return console.format_number(value) if isinstance(value, float) else str(value)


def _name_parts(name: str) -> tuple[str, str, int]:
    user, project, number = name.split("/")
    return user, project, int(number)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)

"""Reads what a query of listings looks at. Thousands of runs are read for one page, so only these columns are
decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, bindparam, func, select

from hopyard.domain.ids import RunId, RunName
from hopyard.domain.run_query import QueryValue, RunValues, run_fields
from hopyard.interfaces.run_store import RunFilter
from hopyard.stores.sql.codec import decode_exit, decode_map, from_us, from_us_or_none
from hopyard.stores.sql.run_filters import matching
from hopyard.stores.sql.run_rows import SHOWN_PHASE
from hopyard.stores.sql.tables import IDS_PER_QUERY, run_contents, runs


class _Dataset(msgspec.Struct):
    name: str


class _SpecFields(msgspec.Struct):
    params: dict[str, str | int | float | bool | None] = {}
    tags: dict[str, str] = {}
    datasets: list[_Dataset] = []


_decode_fields = msgspec.json.Decoder(_SpecFields).decode
_SELECT: Select[Any] = select(
    runs.c.id,
    runs.c.user_name,
    runs.c.project,
    runs.c.number,
    runs.c.label,
    SHOWN_PHASE,
    runs.c.queue,
    runs.c.priority,
    runs.c.script,
    runs.c.exit,
    runs.c.submitted_at,
    runs.c.started_at,
    runs.c.ended_at,
    runs.c.served_us,
    run_contents.c.note,
    runs.c.archived,
    run_contents.c.params,
    run_contents.c.summary,
    run_contents.c.latest,
    func.coalesce(run_contents.c.brief, run_contents.c.spec).label("spec"),
).join(run_contents, run_contents.c.run == runs.c.id)
_SELECT_BY_IDS = _SELECT.where(runs.c.id.in_(bindparam("b_ids", expanding=True)))


@dataclass(frozen=True, slots=True)
class CachedRun:
    """The values of a run without those that depend on the time. running_since: set if `took` does."""

    values: RunValues
    submitted_at: datetime
    running_since: datetime | None

    def with_position(self, position: int | None) -> CachedRun:
        """Returns the run at another position of its queue."""
        values = self.values
        return replace(self, values=replace(values, fields={**values.fields, "position": position}))

    def values_at(self, now: datetime | None) -> RunValues:
        """Returns the values at the time `now`; None: without those that depend on it."""
        if now is None:
            return self.values
        times: dict[str, QueryValue] = {"age": (now - self.submitted_at).total_seconds()}
        if self.running_since is not None:
            times["took"] = (now - self.running_since).total_seconds()
        return replace(self.values, fields={**self.values.fields, **times})


def read_matching(
    conn: Connection, where: RunFilter, positions: Mapping[str, int]
) -> Iterator[tuple[RunId, CachedRun]]:
    """Yields all runs that match, newest first. positions: of waiting runs in their queues."""
    for row in conn.execute(matching(_SELECT, where)):
        yield RunId(row[0]), _decode(row, positions.get(row[0]))


def read_runs(
    conn: Connection, ids: Sequence[RunId], positions: Mapping[str, int]
) -> Iterator[tuple[RunId, CachedRun]]:
    """Yields these runs, without those that do not exist."""
    for start in range(0, len(ids), IDS_PER_QUERY):
        for row in conn.execute(_SELECT_BY_IDS, {"b_ids": ids[start : start + IDS_PER_QUERY]}):
            yield RunId(row[0]), _decode(row, positions.get(row[0]))


def _decode(row: Any, position: int | None) -> CachedRun:
    spec = _read_fields(row.spec)
    exit_ = decode_exit(row.exit)
    submitted_at, started_at = from_us(row.submitted_at), from_us_or_none(row.started_at)
    fields = run_fields(
        run_id=row.id,
        name=RunName(row.user_name, row.project, row.number),
        label=row.label,
        phase=row.phase,
        queue=row.queue,
        priority=row.priority,
        datasets=[dataset.name for dataset in spec.datasets],
        script=row.script,
        reason="" if exit_ is None else exit_.reason,
        position=position,
        note=row.note,
        archived=bool(row.archived),
        submitted_at=submitted_at,
        started_at=started_at,
        ended_at=from_us_or_none(row.ended_at),
        served_s=row.served_us / 1_000_000,
        now=None,
    )
    metrics = {name: value for name, (_, value) in decode_map(row.latest).items()}
    params: Mapping[str, QueryValue] = {**spec.params, **decode_map(row.params)}
    values = RunValues(fields, params, metrics, decode_map(row.summary), spec.tags)
    is_running = row.ended_at is None and not row.served_us
    return CachedRun(values, submitted_at, started_at if is_running else None)


def _read_fields(text: str) -> _SpecFields:
    try:
        return _decode_fields(text)
    except msgspec.DecodeError:
        pass
    try:
        return msgspec.convert(json.loads(text), _SpecFields)  # a param is NaN or infinite
    except (ValueError, RecursionError):  # a damaged spec
        return _SpecFields()

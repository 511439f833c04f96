"""Reads what a query of listings looks at. Thousands of runs are read for one page, so only these columns are
decoded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Select, func, select

from hopyard.domain.ids import RunId, RunName
from hopyard.domain.run_query import QueryValue, RunValues, run_fields
from hopyard.interfaces.run_store import RunFilter
from hopyard.stores.sql.codec import decode_exit, decode_map, from_us, from_us_or_none
from hopyard.stores.sql.run_filters import matching
from hopyard.stores.sql.run_rows import SHOWN_PHASE
from hopyard.stores.sql.tables import run_contents, runs


class _Dataset(msgspec.Struct):
    name: str


class _SpecFields(msgspec.Struct):
    params: dict[str, str | int | float | bool | None] = {}
    tags: dict[str, str] = {}
    datasets: list[_Dataset] = []


_decode_fields = msgspec.json.Decoder(_SpecFields).decode
_QUERY: Select[Any] = select(
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


def query_values_query(where: RunFilter) -> Select[Any]:
    """Returns the query; its rows are for `to_query_values`."""
    return matching(_QUERY, where)


def to_query_values(row: Any, now: datetime) -> tuple[RunId, RunValues]:
    spec = _read_fields(row.spec)
    exit_ = decode_exit(row.exit)
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
        note=row.note,
        archived=bool(row.archived),
        submitted_at=from_us(row.submitted_at),
        started_at=from_us_or_none(row.started_at),
        ended_at=from_us_or_none(row.ended_at),
        served_s=row.served_us / 1_000_000,
        now=now,
    )
    metrics = {name: value for name, (_, value) in decode_map(row.latest).items()}
    params: Mapping[str, QueryValue] = {**spec.params, **decode_map(row.params)}
    return RunId(row.id), RunValues(fields, params, metrics, decode_map(row.summary), spec.tags)


def _read_fields(text: str) -> _SpecFields:
    try:
        return _decode_fields(text)
    except msgspec.DecodeError:
        pass
    try:
        return msgspec.convert(json.loads(text), _SpecFields)  # a param is NaN or infinite
    except (ValueError, RecursionError):  # a damaged spec
        return _SpecFields()

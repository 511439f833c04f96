"""Selects the page of a listing with `where` or `sort`: a query is evaluated over all runs that match the
other filters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from hopyard.domain.ids import RunId
from hopyard.domain.run_query import RunQuery, RunValues, parse_query, parse_sort, sort_key, unknown_names
from hopyard.errors import Conflict, SpecError
from hopyard.interfaces.run_store import RunFilter, RunStore

_MAX_RUNS = 1_000_000  # looked at for one sorted page
_FIRST_CHUNK, _MAX_CHUNK = 500, 8000  # runs read together, in the order of the listing


@dataclass(frozen=True, slots=True)
class RunPage:
    """One page of ids, in order. more: whether there are further runs."""

    ids: Sequence[RunId]
    more: bool


async def select_runs(
    runs: RunStore, where: RunFilter, *, query: str | None, sort: str | None, now: datetime
) -> RunPage:
    """Returns the page of `where.limit` runs after the run `where.before`. Raises SpecError for a query that
    cannot be read or has a mistyped name, Conflict if the run `before` is no longer in a sorted listing."""
    parsed = None if query is None else parse_query(query)
    if sort is None:
        return await _scan(runs, where, parsed, now)
    rows = await runs.query_values(replace(where, before=None, limit=_MAX_RUNS), now=now)
    return await asyncio.to_thread(_select, rows, parsed, sort, where)  # the loop serves others meanwhile


async def _scan(runs: RunStore, where: RunFilter, query: RunQuery | None, now: datetime) -> RunPage:
    """Reads runs from `where.before` on, until the page is full: all pages together read each run once."""
    found: list[RunId] = []
    passed: list[tuple[RunId, RunValues]] = []  # for the hint of a query that no run fulfils
    before, size = where.before, max(_FIRST_CHUNK, where.limit + 1)
    while len(found) <= where.limit:
        rows = await runs.query_values(replace(where, before=before, limit=size), now=now)
        found += await asyncio.to_thread(_accepted, rows, query)  # the loop serves others meanwhile
        passed += [] if found else rows
        if len(rows) < size:
            break
        before, size = rows[-1][0], min(2 * size, _MAX_CHUNK)
    if query is not None and not found and where.before is None:
        _check_names(query.names, (), passed)
    return RunPage(found[: where.limit], len(found) > where.limit)


def _accepted(rows: Sequence[tuple[RunId, RunValues]], query: RunQuery | None) -> list[RunId]:
    return [run for run, values in rows if query is None or query.accepts(values)]


def _select(
    rows: Sequence[tuple[RunId, RunValues]], query: RunQuery | None, sort: str, where: RunFilter
) -> RunPage:
    found = [row for row in rows if query is None or query.accepts(row[1])]
    name, descending = parse_sort(sort)
    _check_names(query.names if query is not None and not found else (), (name,) if name else (), rows)
    if name:
        found.sort(key=lambda row: sort_key(row[1], name, descending=descending))  # stable: newest first
    start = 0
    if where.before is not None:
        ids = [run for run, _ in found]
        if where.before not in ids:
            raise Conflict("the listing has changed", hints=("list the runs from the first page again",))
        start = ids.index(where.before) + 1
    page = found[start : start + where.limit]
    return RunPage([run for run, _ in page], start + where.limit < len(found))


def _check_names(where: Sequence[str], sort: Sequence[str], rows: Sequence[tuple[RunId, RunValues]]) -> None:
    """Raises SpecError for a name that no run has, if it looks like a mistyped name of some run."""
    for what, names in (("where", where), ("sort", sort)):
        for name, closest in unknown_names(names, (values for _, values in rows)).items():
            if closest is not None:
                raise SpecError(f"{what}: no run has `{name}`", hints=(f"did you mean `{closest}`?",))

"""Selects the page of a listing with `where` or `sort`: a query is evaluated over all runs that match the
other filters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hopyard.domain.ids import RunId
from hopyard.domain.run_query import (
    RunQuery,
    RunValues,
    depends_on_time,
    parse_query,
    parse_sort,
    sort_key,
    unknown_names,
)
from hopyard.errors import Conflict, SpecError
from hopyard.interfaces.run_store import RunFilter, RunStore

_MAX_RUNS = 1_000_000  # looked at for one sorted page
_KEPT = timedelta(minutes=1)  # how long the order of a sorted listing serves further pages
_MAX_LISTINGS, _MAX_KEPT_IDS = 16, 200_000
_FIRST_CHUNK, _CHUNK_GROWTH, _MAX_CHUNK = 500, 4, 8000  # runs read together, in the order of the listing


@dataclass(frozen=True, slots=True)
class RunPage:
    """One page of ids, in order. more: whether there are further runs."""

    ids: Sequence[RunId]
    more: bool


class SortedListings:
    """The newest sorted listings: their further pages are the rest of the order that the first page had."""

    def __init__(self) -> None:
        self._orders: dict[str, tuple[datetime, Sequence[RunId]]] = {}  # the oldest first

    def find(self, key: str, now: datetime) -> Sequence[RunId]:
        at, order = self._orders.get(key, (now, ()))
        return order if timedelta(0) <= now - at < _KEPT else ()

    def keep(self, key: str, order: Sequence[RunId], now: datetime) -> None:
        self._orders.pop(key, None)
        if len(order) <= _MAX_KEPT_IDS:
            self._orders[key] = now, order
        while len(self._orders) > _MAX_LISTINGS:
            del self._orders[next(iter(self._orders))]


async def select_runs(
    runs: RunStore,
    where: RunFilter,
    *,
    query: str | None,
    sort: str | None,
    now: datetime,
    listings: SortedListings | None = None,
) -> RunPage:
    """Returns the page of `where.limit` runs after the run `where.before`. Raises SpecError for a query that
    cannot be read or has a mistyped name, Conflict if the run `before` is no longer in a sorted listing.

    listings: where the order of a sorted listing is kept for its further pages.
    """
    parsed = None if query is None else parse_query(query)
    names = () if parsed is None else parsed.names
    if sort is None:
        return await _scan(runs, where, parsed, now if depends_on_time(names) else None)
    name, descending = parse_sort(sort)
    everything = replace(where, before=None, limit=_MAX_RUNS)
    key = repr((everything, query, sort))
    order: Sequence[RunId] = ()
    if listings is not None and where.before is not None:
        order = listings.find(key, now)
    if where.before is None or where.before not in order:
        rows = await runs.query_values(everything, now=now if depends_on_time((*names, name)) else None)
        # the loop serves others meanwhile
        order = await asyncio.to_thread(_sort, rows, parsed, name, descending=descending)
        if listings is not None:
            listings.keep(key, order, now)
    return _cut_page(order, where)


async def _scan(runs: RunStore, where: RunFilter, query: RunQuery | None, now: datetime | None) -> RunPage:
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
        before, size = rows[-1][0], min(_CHUNK_GROWTH * size, _MAX_CHUNK)
    if query is not None and not found and where.before is None:
        check_names(query.names, (), passed)
    return RunPage(found[: where.limit], len(found) > where.limit)


def _accepted(rows: Sequence[tuple[RunId, RunValues]], query: RunQuery | None) -> list[RunId]:
    return [run for run, values in rows if query is None or query.accepts(values)]


def _sort(
    rows: Sequence[tuple[RunId, RunValues]], query: RunQuery | None, name: str, *, descending: bool
) -> list[RunId]:
    found = [row for row in rows if query is None or query.accepts(row[1])]
    check_names(query.names if query is not None and not found else (), (name,), rows)
    key = sort_key(name, descending=descending)
    found.sort(key=lambda row: key(row[1]))  # stable: newest first
    return [run for run, _ in found]


def _cut_page(order: Sequence[RunId], where: RunFilter) -> RunPage:
    start = 0
    if where.before is not None:
        if where.before not in order:
            raise Conflict("the listing has changed", hints=("list the runs from the first page again",))
        start = order.index(where.before) + 1
    return RunPage(order[start : start + where.limit], start + where.limit < len(order))


def check_names(where: Sequence[str], sort: Sequence[str], rows: Sequence[tuple[RunId, RunValues]]) -> None:
    """Raises SpecError for a name that no run has, if it looks like a mistyped name of some run."""
    for what, names in (("where", where), ("sort", sort)):
        for name, closest in unknown_names(names, (values for _, values in rows)).items():
            if closest is not None:
                raise SpecError(f"{what}: no run has `{name}`", hints=(f"did you mean `{closest}`?",))

"""Counts runs by their values, and the names of their values, for facets and choosers of columns."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from hopyard.domain.ids import RunId
from hopyard.domain.metric_values import encode_param
from hopyard.domain.run_query import QueryValue, RunValues, depends_on_time, parse_query
from hopyard.interfaces.run_store import RunFilter, RunStore
from hopyard.server.select_runs import check_names

FIELD_FACETS = ("phase", "user", "project", "queue", "label", "dataset", "script", "reason", "priority")
MAP_FACETS = ("tags", "params")
_CHUNK = 4000  # runs that are read together


@dataclass(slots=True)
class NameCounts:
    """How many runs have each name. total: all runs that match."""

    total: int = 0
    metrics: Counter[str] = field(default_factory=Counter)
    summary: Counter[str] = field(default_factory=Counter)
    params: Counter[str] = field(default_factory=Counter)
    tags: Counter[str] = field(default_factory=Counter)

    def add(self, rows: Iterable[RunValues]) -> None:
        for run in rows:
            self.total += 1
            self.metrics.update(run.metrics.keys())
            self.summary.update(run.summary.keys())
            self.params.update(run.params.keys())
            self.tags.update(run.tags.keys())


@dataclass(slots=True)
class FacetCounts:
    """How many runs have each value of some names; None counts the runs without a value. total: all runs
    that match. A run with several datasets counts for each of them."""

    names: Sequence[str]
    total: int = 0
    counts: dict[str, Counter[QueryValue]] = field(default_factory=dict)

    def add(self, rows: Iterable[RunValues]) -> None:
        counters = [(name, self.counts.setdefault(name, Counter())) for name in self.names]
        for run in rows:
            self.total += 1
            for name, counter in counters:
                counter.update(facet_values(run, name))


def facet_values(run: RunValues, name: str) -> Sequence[QueryValue]:
    """Returns the values of a run for a facet: a field, `tags.KEY` or `params.KEY`."""
    prefix, dot, key = name.partition(".")
    if dot:
        value = (run.tags if prefix == "tags" else run.params).get(key)
        # a counter has True and 1 as one key
        return [str(value).lower() if isinstance(value, bool) else encode_param(value)]
    value = run.fields.get(name)
    if name == "dataset" and isinstance(value, str):
        return list(dict.fromkeys(value.split(" ")))
    return [value]


async def count_runs(
    runs: RunStore, where: RunFilter, query: str | None, counts: NameCounts | FacetCounts, *, now: datetime
) -> None:
    """Adds all runs that match the filter and the query. Raises SpecError for a query that cannot be read, or
    that has a mistyped name."""
    async for rows in _matching_values(runs, where, query, now):
        await asyncio.to_thread(counts.add, rows)  # the loop serves others meanwhile


async def _matching_values(
    runs: RunStore, where: RunFilter, query: str | None, now: datetime
) -> AsyncIterator[list[RunValues]]:
    parsed = None if query is None else parse_query(query)
    at = now if parsed is not None and depends_on_time(parsed.names) else None
    before: RunId | None = None
    found, skipped = False, list[tuple[RunId, RunValues]]()
    while True:
        rows = await runs.query_values(replace(where, before=before, limit=_CHUNK), now=at)
        matching = [values for _, values in rows if parsed is None or parsed.accepts(values)]
        found = found or bool(matching)
        skipped = [] if found or parsed is None else [*skipped, *rows]
        yield matching
        if len(rows) < _CHUNK:
            break
        before = rows[-1][0]
    if parsed is not None and not found:
        check_names(parsed.names, (), skipped)

"""Counts of runs by value, names of their values, and the check of a query: for filters and choosers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import TEXT, RequestModel, full_match
from hopyard.domain.run_query import FIELDS, MAX_QUERY_LENGTH, QueryError, QueryValue, parse_query
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.routes.run_list import RunFilterQuery, to_filter
from hopyard.server.run_facets import FIELD_FACETS, MAP_FACETS, FacetCounts, NameCounts, count_runs
from hopyard.server.services import Services

_FACET = full_match(rf"{'|'.join(FIELD_FACETS)}|({'|'.join(MAP_FACETS)})\.[^\x00]+")
_MAX_FACETS = 32  # per request
_Rows = Annotated[int, Meta(ge=1, le=1000)]


class CountsQuery(RunFilterQuery, kw_only=True):
    by: Annotated[
        tuple[Annotated[str, Meta(pattern=_FACET, max_length=300)], ...],
        Meta(
            min_length=1,
            max_length=_MAX_FACETS,
            description=f"repeatable: {', '.join(FIELD_FACETS)}, tags.KEY or params.KEY",
        ),
    ]
    limit: Annotated[_Rows, Meta(description="values of each facet, the most frequent first")] = 100


class NamesQuery(RunFilterQuery, kw_only=True):
    match: Annotated[str, Meta(max_length=256, pattern=TEXT, description="part of the names")] = ""
    limit: Annotated[_Rows, Meta(description="names of each kind, the most frequent first")] = 1000


class CheckQuery(RequestModel):
    where: Annotated[str, Meta(max_length=MAX_QUERY_LENGTH, pattern=TEXT)]


class ValueCountOut(Struct, frozen=True):
    """value: null counts the runs without one."""

    value: str | int | float | bool | None
    count: int


class FacetOut(Struct, frozen=True):
    """values: the most frequent first. distinct: how many different values there are."""

    by: str
    values: list[ValueCountOut]
    distinct: int


class RunCountsOut(Struct, frozen=True):
    """total: the runs that match the filters."""

    total: int
    facets: list[FacetOut]


class NameCountOut(Struct, frozen=True):
    """count: the runs that have the name."""

    name: str
    count: int


class RunNamesOut(Struct, frozen=True):
    """total: the runs that match the filters. fields: the names of a query that every run has. The others:
    the names of metrics, of the summary, of parameters and of tags. has_more: whether `limit` cut some."""

    total: int
    fields: list[str]
    metrics: list[NameCountOut]
    summary: list[NameCountOut]
    params: list[NameCountOut]
    tags: list[NameCountOut]
    has_more: bool


class QueryErrorOut(Struct, frozen=True):
    """position: of the mistake, in characters from 0; null if it is the whole query. length: of the mistake;
    0 at the end of the query."""

    message: str
    position: int | None
    length: int
    hints: list[str]


class QueryCheckOut(Struct, frozen=True):
    """problem: null for a correct query. names: the names that a correct query compares."""

    problem: QueryErrorOut | None
    names: list[str]


def run_facet_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def counts(request: ApiRequest[CountsQuery, Empty]) -> RunCountsOut:
        """Count the runs by value, under the filters of `GET /runs`. Values of parameters and tags that a
        listing truncates are counted as truncated."""
        query = request.query
        found = FacetCounts(tuple(dict.fromkeys(query.by)))
        await count_runs(
            services.runs, to_filter(query, request.caller.user), query.where, found, now=services.now()
        )
        return RunCountsOut(
            found.total,
            [
                FacetOut(
                    name,
                    [ValueCountOut(value, count) for value, count in _most_frequent(counter)[: query.limit]],
                    len(counter),
                )
                for name in found.names
                for counter in (found.counts.get(name, Counter()),)
            ],
        )

    async def names(request: ApiRequest[NamesQuery, Empty]) -> RunNamesOut:
        """List the names of metrics, parameters and tags of the runs under the filters of `GET /runs`, with
        the number of runs that have each."""
        query = request.query
        found = NameCounts()
        await count_runs(
            services.runs, to_filter(query, request.caller.user), query.where, found, now=services.now()
        )
        kinds = [
            [
                NameCountOut(name, count)
                for name, count in _most_frequent(counter)
                if query.match.lower() in name.lower()
            ]
            for counter in (found.metrics, found.summary, found.params, found.tags)
        ]
        fields = [name for name in FIELDS if query.match.lower() in name]
        metrics, summary, params, tags = (rows[: query.limit] for rows in kinds)
        has_more = any(len(rows) > query.limit for rows in kinds)
        return RunNamesOut(found.total, fields, metrics, summary, params, tags, has_more)

    async def check(request: ApiRequest[CheckQuery, Empty]) -> QueryCheckOut:
        """Check the syntax of a query, with the position of a mistake."""
        try:
            return QueryCheckOut(None, list(parse_query(request.query.where).names))
        except QueryError as error:
            problem = QueryErrorOut(error.message, error.position, error.length, list(error.hints))
            return QueryCheckOut(problem, [])

    return [
        Endpoint("GET", "/runs/counts", counts, CountsQuery, returns=RunCountsOut, errors=(400,)),
        Endpoint("GET", "/runs/names", names, NamesQuery, returns=RunNamesOut, errors=(400,)),
        Endpoint("GET", "/runs/query/check", check, CheckQuery, returns=QueryCheckOut),
    ]


def _most_frequent(counter: Counter[Any]) -> list[tuple[Any, int]]:
    def key(pair: tuple[QueryValue, int]) -> tuple[int, str]:
        return -pair[1], str(pair[0])

    return sorted(counter.items(), key=key)

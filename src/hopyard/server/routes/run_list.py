"""Runs: the listing with its filters, its query and its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from hopyard.config.schemas.fields import (
    RUN_ID,
    TEXT,
    Name,
    RequestModel,
    full_match,
    word_list_pattern,
    word_pattern,
)
from hopyard.domain.ids import RunId
from hopyard.domain.run import Run, RunPhase
from hopyard.domain.run_query import MAX_QUERY_LENGTH, parse_query
from hopyard.domain.spec_summary import truncate_values
from hopyard.errors import Forbidden, SpecError
from hopyard.interfaces.run_store import RunFilter
from hopyard.server.authentication import RUN_TOKEN_HINT
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.run_names import with_readable_names
from hopyard.server.schemas.runs import RunsOut, encode_latest, to_run_out
from hopyard.server.select_runs import SortedListings, select_runs
from hopyard.server.services import Services

_MAX_SOURCES = 100  # per request
_MAX_TAG_FILTERS = 32  # per request
_ARCHIVED: Mapping[str, bool | None] = {"no": False, "only": True, "any": None}
_TagFilter = Annotated[str, Meta(pattern=full_match(r"[^=\x00]+=[^\x00]*"), max_length=1400)]


class RunFilterQuery(RequestModel, kw_only=True):
    """The filters of runs, which all must hold."""

    id: Annotated[
        tuple[Annotated[str, Meta(pattern=RUN_ID)], ...],
        Meta(max_length=_MAX_SOURCES, description="repeatable: only these runs"),
    ] = ()
    phase: (
        Annotated[
            str,
            Meta(
                description="phases, separated by commas", max_length=256, pattern=word_list_pattern(RunPhase)
            ),
        ]
        | None
    ) = None
    user: Name | None = None
    project: Name | None = None
    label: Annotated[str, Meta(max_length=128, pattern=TEXT)] | None = None
    tag: Annotated[
        tuple[_TagFilter, ...],
        Meta(
            max_length=_MAX_TAG_FILTERS,
            description="KEY=VALUE, repeatable: runs with all of these tags",
        ),
    ] = ()
    dataset: Name | None = None
    text: (
        Annotated[str, Meta(max_length=256, pattern=TEXT, description="part of a name, label or tag")] | None
    ) = None
    parent: Annotated[str, Meta(pattern=RUN_ID, description="only trials of this study")] | None = None
    forked_from: Annotated[
        tuple[Annotated[str, Meta(pattern=RUN_ID)], ...],
        Meta(max_length=_MAX_SOURCES, description="repeatable: only forks of one of these runs"),
    ] = ()
    studies: Annotated[int, Meta(ge=0, le=1, description="1: only studies")] = 0
    trials: Annotated[int, Meta(ge=0, le=1, description="0: without the runs of trials")] = 1
    archived: (
        Annotated[
            str,
            Meta(
                pattern=word_pattern(_ARCHIVED),
                description="whether the listing has archived runs; default: `no`, or `any` if `where` names "
                "`archived`",
            ),
        ]
        | None
    ) = None
    starred: Annotated[int, Meta(ge=0, le=1, description="1: only runs that the caller has starred")] = 0
    where: (
        Annotated[
            str,
            Meta(
                max_length=MAX_QUERY_LENGTH,
                pattern=TEXT,
                description="a query: `val_acc > 0.9 and params.lr < 1e-3`",
            ),
        ]
        | None
    ) = None


class ListQuery(RunFilterQuery, kw_only=True):
    sort: (
        Annotated[
            str,
            Meta(
                max_length=256,
                pattern=TEXT,
                description="a name as in `where`: `val_acc`, or `-val_acc` for the largest first",
            ),
        ]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    before: (
        Annotated[
            str, Meta(pattern=RUN_ID, description="only runs after this run in the order of the listing")
        ]
        | None
    ) = None


def run_list_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    listings = SortedListings()

    async def list_runs(request: ApiRequest[ListQuery, Empty]) -> RunsOut:
        """List runs, newest first, with the latest values of the first metrics. Rows are short: `env` and
        `environment.packages` of a spec are empty, `params`, `tags`, `summary`, `latest` and commands are
        truncated, and a study is a summary. `GET /runs/{id}` has everything. `where` and `sort` look at all
        runs that match the other filters; pages of a sorted listing follow its order. A page has all runs of
        `id`, whatever its limit."""
        query = request.query
        if request.caller.run is not None and query.parent != request.caller.run:
            raise Forbidden(
                "the token of a run lists its trials only", hints=("set `parent` to the run", RUN_TOKEN_HINT)
            )
        where = replace(
            to_filter(query, request.caller.user),
            limit=max(query.limit, len(query.id)),
            before=RunId(query.before) if query.before else None,
        )
        runs, more = await _list_page(services, where, query, listings)
        page = await with_readable_names(services.runs, runs)
        latest = services.ingest.latest_metrics(await services.runs.latest_metrics([run.id for run in page]))
        counts = await services.runs.count_trials([run.id for run in page if run.spec.study is not None])
        starred = await services.runs.starred_of(request.caller.user, [run.id for run in page])
        rows = [
            to_run_out(
                run,
                request.caller,
                starred=run.id in starred,
                latest=encode_latest(truncate_values(latest[run.id])),
                trials=trial_counts(run, counts),
            )
            for run in page
        ]
        return RunsOut(rows, page[-1].id if page and more else None)

    return [Endpoint("GET", "/runs", list_runs, ListQuery, returns=RunsOut, errors=(400, 409), auth="run")]


def _archived(query: RunFilterQuery) -> bool | None:
    """Returns what `RunFilter.archived` is for the query. The trials of a study are complete."""
    if query.archived is not None:
        return _ARCHIVED[query.archived]
    is_chosen = query.parent is not None or bool(query.id or query.forked_from or query.starred)
    if is_chosen or (query.where is not None and "archived" in parse_query(query.where).names):
        return None
    return False


async def _list_page(
    services: Services, where: RunFilter, query: ListQuery, listings: SortedListings
) -> tuple[Sequence[Run], bool]:
    """Returns the runs of one page, and whether there are more."""
    if query.where is None and query.sort is None:
        runs = await services.runs.list(replace(where, limit=where.limit + 1))
        return runs[: where.limit], len(runs) > where.limit
    selected = await select_runs(
        services.runs, where, query=query.where, sort=query.sort, now=services.now(), listings=listings
    )
    ids = frozenset(selected.ids)
    runs = await services.runs.list(RunFilter(ids=ids, limit=len(ids), brief=True)) if ids else []
    by_id = {run.id: run for run in runs}  # a run may have been removed since
    return [by_id[run] for run in selected.ids if run in by_id], selected.more


def to_filter(query: RunFilterQuery, user: str) -> RunFilter:
    """Returns the filter without the query `where`. user: the caller, for `starred`.
    Raises SpecError for contradicting tags."""
    return RunFilter(
        ids=frozenset(map(RunId, query.id)) or None,
        phases=_parse_phases(query.phase),
        user=query.user,
        project=query.project,
        label=query.label,
        tags=_parse_tags(query.tag),
        dataset=query.dataset,
        text=query.text,
        parent=RunId(query.parent) if query.parent else None,
        forked_from=frozenset(map(RunId, query.forked_from)) or None,
        studies=bool(query.studies),
        trials=bool(query.trials),
        archived=_archived(query),
        starred_by=user if query.starred else None,
        brief=True,
    )


def _parse_tags(texts: Sequence[str]) -> dict[str, str]:
    """Raises SpecError for a tag with two values, since no run has both."""
    tags: dict[str, str] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if tags.setdefault(key, value) != value:
            raise SpecError(f"tag: `{key}` is given with two values", hints=("name each tag once",))
    return tags


def trial_counts(
    run: Run, counts: Mapping[RunId, Mapping[RunPhase, int]]
) -> Mapping[RunPhase, int] | UnsetType:
    return UNSET if run.spec.study is None else counts.get(run.id, {})


def _parse_phases(text: str | None) -> frozenset[RunPhase] | None:
    return None if text is None else frozenset(RunPhase(word) for word in text.split(","))

"""Filters runs for listings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, exists, func, not_, or_, select

from hopyard.domain.run import RunPhase
from hopyard.interfaces.run_store import RunFilter
from hopyard.stores.sql.run_rows import (
    BRIEF_RUNS_OF_IDS,
    RUNS_OF_IDS,
    SELECT_BRIEF_RUNS,
    SELECT_RUNS,
    SHOWN_PHASE,
)
from hopyard.stores.sql.tables import run_contents, run_datasets, run_stars, run_tags, runs

sources = runs.alias("sources")
_MAX_TEXT = "\U0010ffff"  # sorts after every character


_NEWEST_FIRST = (runs.c.submitted_at.desc(), runs.c.id.desc())
_QUERY_BY_IDS = {
    brief: base.order_by(*_NEWEST_FIRST) for brief, base in ((False, RUNS_OF_IDS), (True, BRIEF_RUNS_OF_IDS))
}
_STUDIES_QUERY_BY_IDS = {brief: query.where(runs.c.study) for brief, query in _QUERY_BY_IDS.items()}


def listing_query(where: RunFilter) -> tuple[Select[Any], Mapping[str, Any]]:
    """Returns the query for one page of matching runs, newest first, with its parameters. Its rows are for
    `to_run`."""
    ids_only = RunFilter(ids=where.ids, limit=where.limit, studies=where.studies, brief=where.brief)
    query = SELECT_BRIEF_RUNS if where.brief else SELECT_RUNS
    if where.ids is not None and len(where.ids) <= where.limit and where == ids_only:
        return (_STUDIES_QUERY_BY_IDS if where.studies else _QUERY_BY_IDS)[where.brief], {
            "b_ids": sorted(where.ids)
        }
    return matching(query, where), {}


def matching(query: Select[Any], where: RunFilter) -> Select[Any]:
    """Returns a query over runs and their contents with the conditions, the order and the limit of a
    listing."""
    return query.where(*_conditions(where)).order_by(*_NEWEST_FIRST).limit(max(where.limit, 0))


def matching_ids(where: RunFilter) -> Select[Any]:
    """Returns the query for the ids of a listing, in its order. Few filters look at the contents, which are
    slow to read."""
    query = select(runs.c.id)
    if where.text or where.run_folder is not None or where.forked_from is not None:
        query = query.join(run_contents, run_contents.c.run == runs.c.id)
    return matching(query, where)


def _conditions(where: RunFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if where.phases is not None:
        conditions.append(_has_phase(where.phases))
    if where.offline is not None:
        conditions.append(runs.c.offline if where.offline else not_(runs.c.offline))
    if where.user is not None:
        conditions.append(runs.c.user_name == where.user)
    if where.project is not None:
        conditions.append(runs.c.project == where.project)
    if where.label is not None:
        conditions.append(runs.c.label == where.label)
    for key, value in (where.tags or {}).items():
        has_tag = exists().where(
            run_tags.c.run == runs.c.id, run_tags.c.key == key, run_tags.c.value == value
        )
        conditions.append(has_tag)
    if where.dataset is not None:
        conditions.append(
            exists().where(run_datasets.c.run == runs.c.id, run_datasets.c.dataset == where.dataset)
        )
    if where.text:
        conditions.append(run_contents.c.search.contains(where.text.lower(), autoescape=True))
    if where.number is not None:
        conditions.append(runs.c.number == where.number)
    if where.ids is not None:
        conditions.append(runs.c.id.in_(sorted(where.ids)))
    if where.id_prefix is not None:
        # a range of the key, without a scan
        conditions += [runs.c.id >= where.id_prefix, runs.c.id < where.id_prefix + _MAX_TEXT]
    if where.parent is not None:
        conditions.append(runs.c.parent == where.parent)
    if where.run_folder is not None:
        conditions.append(run_contents.c.run_folder == where.run_folder)
    if where.forked_from is not None:
        # no index: a fork is younger than its source, and few requests ask for it
        names = [f'"forked_from":"{run}"' for run in sorted(where.forked_from)]
        conditions.append(or_(*(run_contents.c.spec.contains(name, autoescape=True) for name in names)))
        oldest = select(func.min(sources.c.submitted_at)).where(sources.c.id.in_(sorted(where.forked_from)))
        conditions.append(runs.c.submitted_at >= func.coalesce(oldest.scalar_subquery(), 0))
    if where.studies:
        conditions.append(runs.c.study)
    if where.archived is not None:
        conditions.append(runs.c.archived if where.archived else not_(runs.c.archived))
    if where.starred_by is not None:
        conditions.append(
            exists().where(run_stars.c.run == runs.c.id, run_stars.c.user_name == where.starred_by)
        )
    if not where.trials:
        conditions.append(runs.c.parent.is_(None))
    if where.before is not None:
        conditions.append(_older_than(where.before))
    return conditions


def _has_phase(phases: Collection[RunPhase]) -> ColumnElement[bool]:
    """Returns the condition of a phase that users see. A paused run is stored as running."""
    stored = {RunPhase.RUNNING if phase is RunPhase.PAUSED else phase for phase in phases}
    condition = runs.c.phase.in_(sorted(str(phase) for phase in stored))
    is_hidden = (RunPhase.RUNNING in phases) is not (RunPhase.PAUSED in phases)
    return condition & SHOWN_PHASE.in_(sorted(map(str, phases))) if is_hidden else condition


def _older_than(run: str) -> ColumnElement[bool]:
    """Returns the condition that a run is older than `run`. That run may have been deleted since the last
    page; then its id, which sorts by time, is compared."""
    cursor = runs.alias("cursor")
    cursor_time = select(cursor.c.submitted_at).where(cursor.c.id == run).scalar_subquery()
    is_deleted = ~exists().where(cursor.c.id == run)
    return or_(
        runs.c.submitted_at < cursor_time,
        (runs.c.submitted_at == cursor_time) & (runs.c.id < run),
        is_deleted & (runs.c.id < run),
    )

"""Which runs a listing shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, exists, not_, or_, select

from hopyard.interfaces.run_store import RunFilter
from hopyard.stores.sql.run_rows import BRIEF_RUNS_OF_IDS, RUNS_OF_IDS, SELECT_BRIEF_RUNS, SELECT_RUNS
from hopyard.stores.sql.tables import run_contents, run_datasets, run_tags, runs

_MAX_TEXT = "\U0010ffff"  # sorts behind every letter


_NEWEST_FIRST = (runs.c.submitted_at.desc(), runs.c.id.desc())
_QUERY_BY_IDS = {
    brief: base.order_by(*_NEWEST_FIRST) for brief, base in ((False, RUNS_OF_IDS), (True, BRIEF_RUNS_OF_IDS))
}
_STUDIES_QUERY_BY_IDS = {brief: query.where(runs.c.study) for brief, query in _QUERY_BY_IDS.items()}


def listing_query(where: RunFilter) -> tuple[Select[Any], Mapping[str, Any]]:
    """The query for what the filter shows, for `to_run`, and its parameters: newest first, one page of it."""
    plain = RunFilter(ids=where.ids, limit=where.limit, studies=where.studies, brief=where.brief)
    chosen = SELECT_BRIEF_RUNS if where.brief else SELECT_RUNS
    if where.ids is not None and len(where.ids) <= where.limit and where == plain:
        return (_STUDIES_QUERY_BY_IDS if where.studies else _QUERY_BY_IDS)[where.brief], {
            "b_ids": sorted(where.ids)
        }
    return chosen.where(*_conditions(where)).order_by(*_NEWEST_FIRST).limit(max(where.limit, 0)), {}


def _conditions(where: RunFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if where.phases is not None:
        found.append(runs.c.phase.in_(sorted(str(phase) for phase in where.phases)))
    if where.offline is not None:
        found.append(runs.c.offline if where.offline else not_(runs.c.offline))
    if where.user is not None:
        found.append(runs.c.user_name == where.user)
    if where.project is not None:
        found.append(runs.c.project == where.project)
    if where.label is not None:
        found.append(runs.c.label == where.label)
    for key, value in (where.tags or {}).items():
        tagged = exists().where(run_tags.c.run == runs.c.id, run_tags.c.key == key, run_tags.c.value == value)
        found.append(tagged)
    if where.dataset is not None:
        found.append(exists().where(run_datasets.c.run == runs.c.id, run_datasets.c.dataset == where.dataset))
    if where.text:
        found.append(run_contents.c.search.contains(where.text.lower(), autoescape=True))
    if where.number is not None:
        found.append(runs.c.number == where.number)
    if where.ids is not None:
        found.append(runs.c.id.in_(sorted(where.ids)))
    if where.id_prefix is not None:
        # a range of the key, no scan
        found += [runs.c.id >= where.id_prefix, runs.c.id < where.id_prefix + _MAX_TEXT]
    if where.parent is not None:
        found.append(runs.c.parent == where.parent)
    if where.studies:
        found.append(runs.c.study)
    if not where.trials:
        found.append(runs.c.parent.is_(None))
    if where.before is not None:
        found.append(_older_than(where.before))
    return found


def _older_than(run: str) -> ColumnElement[bool]:
    """Older than a run that may have been deleted since the last page: then its id, which sorts by time, must
    do."""
    cursor = runs.alias("cursor")
    at = select(cursor.c.submitted_at).where(cursor.c.id == run).scalar_subquery()
    gone = ~exists().where(cursor.c.id == run)
    return or_(
        runs.c.submitted_at < at, (runs.c.submitted_at == at) & (runs.c.id < run), gone & (runs.c.id < run)
    )

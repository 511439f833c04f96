"""Filters runs for listings."""

from __future__ import annotations

from hopyard.domain.ids import RunId
from hopyard.interfaces.run_store import RunFilter
from hopyard.stores.memory.rows import RunRow


def matches(row: RunRow, where: RunFilter) -> bool:
    """Returns whether the run matches the filter; the caller applies `before` and `limit`."""
    spec = row.spec
    return (
        (where.phases is None or row.shown_phase in where.phases)
        and (where.offline is None or row.offline is where.offline)
        and (where.user is None or row.name.user == where.user)
        and (where.project is None or spec.project == where.project)
        and (where.label is None or spec.label == where.label)
        and all(spec.tags.get(key) == value for key, value in (where.tags or {}).items())
        and (where.dataset is None or any(ref.name == where.dataset for ref in spec.datasets))
        and (not where.text or where.text.lower() in _searchable_text(row))
        and (where.number is None or row.name.number == where.number)
        and (where.ids is None or row.id in where.ids)
        and (where.parent is None or spec.parent == where.parent)
        and (where.run_folder is None or row.run_folder == where.run_folder)
        and (where.forked_from is None or spec.forked_from in where.forked_from)
        and (not where.studies or spec.study is not None)
        and (where.archived is None or row.archived is where.archived)
        and (where.starred_by is None or where.starred_by in row.starred_by)
        and (where.trials or spec.parent is None)
        and (where.id_prefix is None or row.id.startswith(where.id_prefix))
    )


def older_than(row: RunRow, before: RunId, cursor: RunRow | None) -> bool:
    """Returns whether the run is older than `before`. That run may have been deleted since the last page;
    then its id, which sorts by time, is compared."""
    if cursor is None:
        return row.id < before
    return (row.submitted_at, row.id) < (cursor.submitted_at, cursor.id)


def _searchable_text(row: RunRow) -> str:
    tags = (f"{key}={value}" for key, value in row.spec.tags.items())
    return "\n".join([str(row.name), row.spec.label, *tags]).lower()

"""Rows of runs that users have starred."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, select

from hopyard.domain.ids import RunId
from hopyard.stores.sql.tables import IDS_PER_QUERY, run_stars


def write_star(conn: Connection, run: RunId, user: str, starred: bool) -> None:
    conn.execute(delete(run_stars).where(run_stars.c.run == run, run_stars.c.user_name == user))
    if starred:
        conn.execute(run_stars.insert().values(run=run, user_name=user))


def starred_runs(conn: Connection, user: str, runs: Sequence[RunId]) -> frozenset[RunId]:
    """Returns those of the runs that the user has starred."""
    starred: set[RunId] = set()
    query = select(run_stars.c.run).where(run_stars.c.user_name == user)
    for start in range(0, len(runs), IDS_PER_QUERY):
        starred.update(
            conn.execute(query.where(run_stars.c.run.in_(runs[start : start + IDS_PER_QUERY]))).scalars()
        )
    return frozenset(starred)

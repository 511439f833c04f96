"""The numbers of runs. Safe without locks: only one writing transaction runs at a time."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, update

from hopyard.stores.sql.tables import run_numbers

_ADVANCE_NUMBER = (
    update(run_numbers)
    .where(run_numbers.c.user_name == bindparam("b_user"), run_numbers.c.project == bindparam("b_project"))
    .values(last=run_numbers.c.last + bindparam("b_count"))
    .returning(run_numbers.c.last)
)


def allocate_run_numbers(conn: Connection, user: str, project: str, count: int) -> int:
    """Returns the first of the next `count` run numbers of a user's project."""
    last = conn.execute(_ADVANCE_NUMBER, {"b_user": user, "b_project": project, "b_count": count}).scalar()
    if last is None:
        last = count
        conn.execute(run_numbers.insert().values(user_name=user, project=project, last=last))
    return int(last) - count + 1

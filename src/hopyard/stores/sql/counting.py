"""Numbers that only grow. Safe without locks of their own: only one writing transaction is under way at a time."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select, update

from hopyard.domain.ids import Version
from hopyard.stores.sql.tables import counters, run_numbers

_BUMP = update(counters).where(counters.c.name == "version").values(value=counters.c.value + 1).returning(counters.c.value)
_VERSION = select(counters.c.value).where(counters.c.name == "version")
_TAKE = (
    update(run_numbers)
    .where(run_numbers.c.user_name == bindparam("b_user"), run_numbers.c.project == bindparam("b_project"))
    .values(last=run_numbers.c.last + bindparam("b_count"))
    .returning(run_numbers.c.last)
)


def bump_version(conn: Connection) -> Version:
    """Count one more change of what a policy sees."""
    return Version(conn.execute(_BUMP).scalar_one())


def current_version(conn: Connection) -> Version:
    return Version(conn.execute(_VERSION).scalar_one())


def take_numbers(conn: Connection, user: str, project: str, count: int) -> int:
    """The first of the next `count` run numbers of a user's project."""
    last = conn.execute(_TAKE, {"b_user": user, "b_project": project, "b_count": count}).scalar()
    if last is None:
        last = count
        conn.execute(run_numbers.insert().values(user_name=user, project=project, last=last))
    return int(last) - count + 1

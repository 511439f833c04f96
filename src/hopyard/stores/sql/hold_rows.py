"""Why runs wait, and where in the queue. Written after every turn of the policy, so it must be cheap for a long queue.

When the head of the queue leaves, everybody moves up. So a row keeps `rank`, and the position is rank - `hold_base`: the
base moves instead of ten thousand rows, and only what changed beside that is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, delete, select, update

from hopyard.domain.cluster import Hold
from hopyard.domain.run import RunPhase
from hopyard.stores.sql.tables import counters, holds, runs

_WAITING = (
    select(runs.c.id, holds.c.rank, holds.c.reason, holds.c.detail)
    .outerjoin(holds, holds.c.run == runs.c.id)
    .where(runs.c.phase == str(RunPhase.QUEUED))
)
_BASE = select(counters.c.value).where(counters.c.name == "hold_base")
_SET_BASE = update(counters).where(counters.c.name == "hold_base")
_CHANGE = update(holds).where(holds.c.run == bindparam("b_run"))
_REMOVE = delete(holds).where(holds.c.run == bindparam("b_run"))
_INSERT = holds.insert()


class _Row(NamedTuple):
    rank: int | None
    reason: str | None
    detail: str | None


def write_holds(conn: Connection, wanted: Sequence[Hold]) -> None:
    """Position, reason and detail of those that still wait."""
    if not wanted:
        return
    rows = {run: _Row(rank, reason, detail) for run, rank, reason, detail in conn.execute(_WAITING)}
    still = [hold for hold in wanted if hold.gang in rows]
    base = _best_base(conn, still, rows)
    fresh: list[dict[str, Any]] = []
    changed: list[dict[str, Any]] = []
    for hold in still:
        want = _Row(hold.position + base, str(hold.reason), hold.detail)
        there = rows[hold.gang]
        if there.rank is None:
            fresh.append({"run": hold.gang, **want._asdict()})
        elif there != want:
            changed.append({"b_run": hold.gang, **want._asdict()})
    if fresh:
        conn.execute(_INSERT, fresh)
    if changed:
        conn.execute(_CHANGE, changed)


def drop_holds(conn: Connection, gone: Sequence[str]) -> None:
    """These wait no longer."""
    if gone:
        conn.execute(_REMOVE, [{"b_run": run} for run in gone])


def _best_base(conn: Connection, wanted: Sequence[Hold], rows: dict[str, _Row]) -> int:
    """The base under which most rows can stay as they are; it is written when it moved."""
    before = int(conn.execute(_BASE).scalar_one())
    shifts = Counter(rank - hold.position for hold in wanted if (rank := rows[hold.gang].rank) is not None)
    best, votes = max(shifts.items(), key=lambda pair: (pair[1], pair[0] == before), default=(before, 0))
    if votes == shifts[before] or best == before:
        return before
    conn.execute(_SET_BASE.values(value=best))
    return best

"""Reads the attempts of all runs in a time range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, func, or_, select

from hopyard.domain.ids import RunId, RunName
from hopyard.interfaces.run_store import AttemptFilter, RunAttempt
from hopyard.stores.sql.codec import decode_gang_request, to_us
from hopyard.stores.sql.live_attempt_rows import IS_LIVE
from hopyard.stores.sql.run_rows import ATTEMPT_COLUMNS, to_attempt
from hopyard.stores.sql.tables import attempts, runs, usage

_SELECT = select(
    runs.c.id, runs.c.user_name, runs.c.project, runs.c.number, runs.c.queue, runs.c.gang, *ATTEMPT_COLUMNS
).join(attempts, attempts.c.run == runs.c.id)
# The usage has an index of ends, which the attempts have not.
_SELECT_ENDED = _SELECT.join(usage, usage.c.attempt == attempts.c.id)


def read_attempts_between(conn: Connection, where: AttemptFilter) -> Sequence[RunAttempt]:
    """Returns what `RunStore.attempts_between` returns."""
    ended = _SELECT_ENDED.where(
        usage.c.ended_at > to_us(where.since),
        or_(attempts.c.ended_at.is_(None), attempts.c.ended_at > to_us(where.since)),
    )
    live = _SELECT.where(IS_LIVE)
    found = [_to_run_attempt(row) for query in (ended, live) for row in conn.execute(_narrowed(query, where))]
    found.sort(key=lambda each: (each.attempt.placed_at, each.attempt.id), reverse=True)
    return found[: where.limit]


def _narrowed(query: Select[Any], where: AttemptFilter) -> Select[Any]:
    query = query.where(attempts.c.placed_at < to_us(where.until))
    if where.queues is not None:
        query = query.where(runs.c.queue.in_(sorted(where.queues)))
    if where.node is not None:
        # LIKE ignores case in SQLite. Names of nodes need no escapes in JSON.
        without_node = func.replace(attempts.c.placement, f'["{where.node}",', "")
        query = query.where(without_node != attempts.c.placement)
    if where.before is not None:
        placed_us, attempt = to_us(where.before[0]), where.before[1]
        query = query.where(
            or_(
                attempts.c.placed_at < placed_us,
                and_(attempts.c.placed_at == placed_us, attempts.c.id < attempt),
            )
        )
    return query.order_by(attempts.c.placed_at.desc(), attempts.c.id.desc()).limit(where.limit)


def _to_run_attempt(row: Any) -> RunAttempt:
    return RunAttempt(
        RunId(row.id),
        RunName(row.user_name, row.project, row.number),
        row.queue,
        to_attempt(row, decode_gang_request(row.gang)),
    )

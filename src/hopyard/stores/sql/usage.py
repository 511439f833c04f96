"""The resources that attempts held, stored permanently: one row per attempt, written at the attempt's end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Double, bindparam, case, cast, func, insert, select

from hopyard.domain.amounts import placed_amounts
from hopyard.domain.queue import CPU, GPU, MEMORY, Amounts
from hopyard.domain.usage import Usage, UsageKey, sum_usage, usage_between
from hopyard.stores.sql.codec import from_us, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.gang_rows import GANG_COLUMNS, to_gang
from hopyard.stores.sql.live_attempt_rows import IS_LIVE, to_placement
from hopyard.stores.sql.tables import attempts, runs, usage

_US_PER_S = 1_000_000.0
# Only the run's row has the project.
_INSERT_USAGE = insert(usage).from_select(
    [column.name for column in usage.columns],
    select(
        bindparam("b_attempt"),
        runs.c.user_name,
        bindparam("b_queue"),
        runs.c.project,
        bindparam("b_placed_at", type_=usage.c.placed_at.type),
        bindparam("b_ended_at", type_=usage.c.ended_at.type),
        bindparam("b_gpu_milli", type_=usage.c.gpu_milli.type),
        bindparam("b_cpu_milli", type_=usage.c.cpu_milli.type),
        bindparam("b_memory_bytes", type_=usage.c.memory_bytes.type),
    ).where(runs.c.id == bindparam("b_run")),
    include_defaults=False,
)
_SELECT_LIVE = (
    select(*GANG_COLUMNS, attempts.c.placement, attempts.c.counts, attempts.c.placed_at, runs.c.project)
    .join(runs, runs.c.id == attempts.c.run)
    .where(IS_LIVE)
)


def usage_row(
    attempt: str, run: str, queue: str, amounts: Amounts, *, placed_at: int, ended_at: int
) -> dict[str, Any]:
    """Returns the row of one attempt for `insert_usage`. Times in microseconds."""
    return {
        "b_attempt": attempt,
        "b_run": run,
        "b_queue": queue,
        "b_placed_at": placed_at,
        "b_ended_at": ended_at,
        "b_gpu_milli": amounts.get(GPU, 0),
        "b_cpu_milli": amounts.get(CPU, 0),
        "b_memory_bytes": amounts.get(MEMORY, 0),
    }


def insert_usage(conn: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        conn.execute(_INSERT_USAGE, [dict(row) for row in rows])


class SqlUsageStore:
    """Implements `hopyard.interfaces.usage_store.UsageStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def usage(self, since: datetime, until: datetime, /, *, now: datetime) -> Sequence[Usage]:
        def read(conn: Connection) -> list[Usage]:
            return sum_usage(
                [*_ended_usage(conn, to_us(since), to_us(until)), *_live_usage(conn, since, until, now)],
                tuple(UsageKey),
            )

        return await self._database.read(read)


def _ended_usage(conn: Connection, since: int, until: int) -> Iterator[Usage]:
    end = case((usage.c.ended_at < until, usage.c.ended_at), else_=until)
    start = case((usage.c.placed_at > since, usage.c.placed_at), else_=since)
    held_s = cast(end - start, Double) / _US_PER_S
    query = (
        select(
            usage.c.user_name,
            usage.c.queue,
            usage.c.project,
            func.count(),
            func.sum(held_s),
            func.sum(held_s * usage.c.gpu_milli) / 1000.0,
            func.sum(held_s * usage.c.cpu_milli) / 1000.0,
            func.sum(held_s * usage.c.memory_bytes),
        )
        .where(usage.c.ended_at > since, usage.c.placed_at < until, usage.c.ended_at > usage.c.placed_at)
        .group_by(usage.c.user_name, usage.c.queue, usage.c.project)
    )
    for user, queue, project, count, *sums in conn.execute(query):
        yield Usage(user, queue, project, count, *map(float, sums))


def _live_usage(conn: Connection, since: datetime, until: datetime, now: datetime) -> Iterator[Usage]:
    for row in conn.execute(_SELECT_LIVE):
        gang = to_gang(row)
        amounts = placed_amounts(to_placement(row, gang), {})
        attempt_usage = usage_between(
            from_us(row.placed_at),
            now,
            amounts,
            since=since,
            until=until,
            user=gang.user,
            queue=gang.queue,
            project=row.project,
        )
        if attempt_usage is not None:
            yield attempt_usage

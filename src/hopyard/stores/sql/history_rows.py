"""The history of ended attempts: the durations of runs, and the past usage of users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table, bindparam, select, update

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import PastUsage
from hopyard.stores.sql.codec import decode_seconds, encode_seconds, from_us, to_us
from hopyard.stores.sql.raw_statements import RawStatement
from hopyard.stores.sql.tables import durations, used

PastUsageKey = tuple[QueueName, str]

_SELECT_USAGE = select(used.c.queue, used.c.user_name, used.c.share_seconds, used.c.at)
_SELECT_USAGE_SINCE = _SELECT_USAGE.where(used.c.touched > bindparam("b_clock"))
_SELECT_DURATIONS_SINCE = select(durations.c.key, durations.c.seconds).where(
    durations.c.touched > bindparam("b_clock")
)
_UPDATE_USAGE = RawStatement(
    update(used).where(used.c.queue == bindparam("b_queue"), used.c.user_name == bindparam("b_user"))
)
_UPDATE_DURATIONS = RawStatement(update(durations).where(durations.c.key == bindparam("b_key")))


def past_usage_since(conn: Connection, clock: int) -> dict[PastUsageKey, PastUsage]:
    rows = conn.execute(_SELECT_USAGE_SINCE, {"b_clock": clock})
    return {(QueueName(queue), user): PastUsage(amount, from_us(at)) for queue, user, amount, at in rows}


def durations_since(conn: Connection, clock: int) -> dict[str, tuple[float, ...]]:
    return {
        key: decode_seconds(packed)
        for key, packed in conn.execute(_SELECT_DURATIONS_SINCE, {"b_clock": clock})
    }


def write_past_usage(
    conn: Connection,
    existing: Mapping[PastUsageKey, PastUsage],
    changed: Mapping[PastUsageKey, PastUsage],
    *,
    clock: int,
) -> None:
    """Writes changed rows. existing: the keys that have a row."""
    inserts: list[dict[str, Any]] = []
    updates: list[dict[str, Any]] = []
    for (queue, user), past in changed.items():
        values = {"share_seconds": past.share_seconds, "at": to_us(past.at), "touched": clock}
        if (queue, user) in existing:
            updates.append({"b_queue": queue, "b_user": user, **values})
        else:
            inserts.append({"queue": queue, "user_name": user, **values})
    _upsert(conn, used, inserts, _UPDATE_USAGE, updates)


def write_durations(
    conn: Connection,
    existing: Mapping[str, tuple[float, ...]],
    changed: Mapping[str, tuple[float, ...]],
    *,
    clock: int,
) -> None:
    """Writes changed rows. existing: the keys that have a row."""
    inserts: list[dict[str, Any]] = []
    updates: list[dict[str, Any]] = []
    for key, seconds in changed.items():
        values = {"seconds": encode_seconds(seconds), "touched": clock}
        if key in existing:
            updates.append({"b_key": key, **values})
        else:
            inserts.append({"key": key, **values})
    _upsert(conn, durations, inserts, _UPDATE_DURATIONS, updates)


def _upsert(
    conn: Connection,
    table: Table,
    inserts: list[dict[str, Any]],
    statement: RawStatement,
    updates: list[dict[str, Any]],
) -> None:
    if inserts:
        conn.execute(table.insert(), inserts)
    statement.execute_many(conn, updates)

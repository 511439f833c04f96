"""What is learnt from attempts that ended: how long runs took, and what users used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table, bindparam, select, update

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Used
from hopyard.stores.sql.codec import decode_seconds, encode_seconds, from_us, to_us
from hopyard.stores.sql.hot import Hot
from hopyard.stores.sql.tables import durations, used

UsedKey = tuple[QueueName, str]

_USED = select(used.c.queue, used.c.user_name, used.c.share_seconds, used.c.at)
_USED_SINCE = _USED.where(used.c.touched > bindparam("b_clock"))
_DURATIONS_SINCE = select(durations.c.key, durations.c.seconds).where(
    durations.c.touched > bindparam("b_clock")
)
_CHANGE_USED = Hot(
    update(used).where(used.c.queue == bindparam("b_queue"), used.c.user_name == bindparam("b_user"))
)
_CHANGE_DURATIONS = Hot(update(durations).where(durations.c.key == bindparam("b_key")))


def used_since(conn: Connection, clock: int) -> dict[UsedKey, Used]:
    rows = conn.execute(_USED_SINCE, {"b_clock": clock})
    return {(QueueName(queue), user): Used(amount, from_us(at)) for queue, user, amount, at in rows}


def durations_since(conn: Connection, clock: int) -> dict[str, tuple[float, ...]]:
    return {key: decode_seconds(packed) for key, packed in conn.execute(_DURATIONS_SINCE, {"b_clock": clock})}


def write_used(
    conn: Connection, known: Mapping[UsedKey, Used], changed: Mapping[UsedKey, Used], *, clock: int
) -> None:
    """known: those that have a row."""
    fresh: list[dict[str, Any]] = []
    again: list[dict[str, Any]] = []
    for (queue, user), one in changed.items():
        values = {"share_seconds": one.share_seconds, "at": to_us(one.at), "touched": clock}
        if (queue, user) in known:
            again.append({"b_queue": queue, "b_user": user, **values})
        else:
            fresh.append({"queue": queue, "user_name": user, **values})
    _write(conn, used, fresh, _CHANGE_USED, again)


def write_durations(
    conn: Connection,
    known: Mapping[str, tuple[float, ...]],
    changed: Mapping[str, tuple[float, ...]],
    *,
    clock: int,
) -> None:
    """known: those that have a row."""
    fresh: list[dict[str, Any]] = []
    again: list[dict[str, Any]] = []
    for key, seconds in changed.items():
        values = {"seconds": encode_seconds(seconds), "touched": clock}
        if key in known:
            again.append({"b_key": key, **values})
        else:
            fresh.append({"key": key, **values})
    _write(conn, durations, fresh, _CHANGE_DURATIONS, again)


def _write(
    conn: Connection, table: Table, fresh: list[dict[str, Any]], change: Hot, again: list[dict[str, Any]]
) -> None:
    if fresh:
        conn.execute(table.insert(), fresh)
    change.change(conn, again)

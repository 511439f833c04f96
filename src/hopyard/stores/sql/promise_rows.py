"""Rows of promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, update

from hopyard.domain.cluster import Promise
from hopyard.domain.ids import GangId, NodeId
from hopyard.stores.sql.codec import decode_words, encode_words, from_us, to_us
from hopyard.stores.sql.tables import promises

_SELECT_PROMISES = select(
    promises.c.run, promises.c.start_at, promises.c.given_at, promises.c.nodes, promises.c.made_room
).order_by(promises.c.run)
_UPDATE_PROMISE = update(promises).where(promises.c.run == bindparam("b_run"))
_DELETE_PROMISE = delete(promises).where(promises.c.run == bindparam("b_run"))

PromisesByGang = Mapping[GangId, Promise]


def all_promises(conn: Connection) -> dict[GangId, Promise]:
    return {
        GangId(run): Promise(
            GangId(run),
            from_us(start_at),
            from_us(given_at),
            tuple(NodeId(name) for name in decode_words(nodes)),
            made_room,
        )
        for run, start_at, given_at, nodes, made_room in conn.execute(_SELECT_PROMISES)
    }


def replace_promises(conn: Connection, before: PromisesByGang, after: PromisesByGang) -> bool:
    """Writes the differences; returns whether there were any."""
    inserts = [{"run": gang, **_to_values(promise)} for gang, promise in after.items() if gang not in before]
    updates = [
        {"b_run": gang, **_to_values(promise)}
        for gang, promise in after.items()
        if gang in before and before[gang] != promise
    ]
    deletes = [{"b_run": gang} for gang in before if gang not in after]
    if deletes:
        conn.execute(_DELETE_PROMISE, deletes)
    if updates:
        conn.execute(_UPDATE_PROMISE, updates)
    if inserts:
        conn.execute(promises.insert(), inserts)
    return bool(inserts or updates or deletes)


def _to_values(promise: Promise) -> dict[str, Any]:
    return {
        "start_at": to_us(promise.start_at),
        "given_at": to_us(promise.given_at),
        "nodes": encode_words(promise.nodes),
        "made_room": promise.has_preempted,
    }

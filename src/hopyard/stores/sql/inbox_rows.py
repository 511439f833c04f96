"""Entries of inboxes: alerts and ends of a user's runs, and how far each user has read."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, literal, null, or_, select

from hopyard.domain.ids import RunId
from hopyard.domain.inbox import InboxEntry, InboxPosition, sort_key
from hopyard.domain.notification import END_KEY
from hopyard.domain.run import RunPhase
from hopyard.stores.sql.codec import decode_alert, from_us, to_us
from hopyard.stores.sql.tables import inbox_reads, notifications, runs

_FINAL = sorted(str(phase) for phase in RunPhase if phase.is_final)


def list_entries(
    conn: Connection, user: str, limit: int, before: InboxPosition | None, after: datetime | None
) -> list[InboxEntry]:
    """Returns alerts and ends of the user's runs, newest first. Each of the two queries reads an index."""
    alerts = (
        select(
            notifications.c.next_at.label("at"),
            notifications.c.run,
            notifications.c.key,
            notifications.c.alert,
        )
        .join(runs, runs.c.id == notifications.c.run)
        .where(notifications.c.target == "", notifications.c.alert.is_not(None), runs.c.user_name == user)
    )
    ends = select(runs.c.ended_at.label("at"), runs.c.id, literal(END_KEY), null()).where(
        runs.c.user_name == user,
        runs.c.parent.is_(None),
        runs.c.phase.in_(_FINAL),
        runs.c.ended_at.is_not(None),
    )
    found = [
        _to_entry(row)
        for query, at, run, key in (
            (alerts, notifications.c.next_at, notifications.c.run, notifications.c.key),
            (ends, runs.c.ended_at, runs.c.id, literal(END_KEY)),
        )
        for row in conn.execute(_page(query, at, run, key, limit, before, after))
    ]
    return sorted(found, key=lambda entry: sort_key(entry.position), reverse=True)[:limit]


def read_until(conn: Connection, user: str) -> datetime | None:
    query = select(inbox_reads.c.read_at).where(inbox_reads.c.user_name == user)
    read_at = conn.execute(query).scalar_one_or_none()
    return None if read_at is None else from_us(read_at)


def write_read_until(conn: Connection, user: str, until: datetime) -> datetime:
    """Returns what is stored then: the later of the two times."""
    stored = read_until(conn, user)
    if stored is not None and stored >= until:
        return stored
    conn.execute(inbox_reads.delete().where(inbox_reads.c.user_name == user))
    conn.execute(inbox_reads.insert().values(user_name=user, read_at=to_us(until)))
    return until


def _page(
    query: Select[int, str, str, str | None],
    at: ColumnElement[int],
    run: ColumnElement[str],
    key: ColumnElement[str],
    limit: int,
    before: InboxPosition | None,
    after: datetime | None,
) -> Select[int, str, str, str | None]:
    if before is not None:
        us = to_us(before.at)
        same_time = or_(run < before.run, and_(run == before.run, key < before.key))
        query = query.where(at <= us, or_(at < us, same_time))
    if after is not None:
        query = query.where(at > to_us(after))
    return query.order_by(at.desc(), run.desc(), key.desc()).limit(limit)


def _to_entry(row: Row[int, str, str, str | None]) -> InboxEntry:
    at, run, key, alert = row
    position = InboxPosition(from_us(at), RunId(run), key)
    return InboxEntry(position, None if alert is None else decode_alert(alert))

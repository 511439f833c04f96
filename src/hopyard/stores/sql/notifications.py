"""Notifications about runs, in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, and_, delete, or_, select, update

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.inbox import InboxEntry, InboxPosition
from hopyard.domain.notification import (
    CLAIM,
    END_DELAY,
    END_KEY,
    MAX_ALERTS,
    Alert,
    DeliveryState,
    Notification,
    NotifyOn,
    NotifyTarget,
    alert_sentence,
    not_sent_sentence,
    retry_at,
    sent_sentence,
)
from hopyard.domain.run import RunEvent, RunEventKind, RunPhase, RunSpec
from hopyard.errors import NotFound
from hopyard.stores.sql.codec import decode_alert, decode_spec, from_us, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.inbox_rows import list_entries, read_until, write_read_until
from hopyard.stores.sql.tables import notifications as table
from hopyard.stores.sql.tables import run_contents, run_events, runs

_FINAL = sorted(str(phase) for phase in RunPhase if phase.is_final)
_PENDING = str(DeliveryState.PENDING)


def end_rows(run: RunId, spec: RunSpec, now: datetime) -> list[dict[str, Any]]:
    """Returns the rows that a new run begins with: the notifications of its end."""
    return [
        _row(run, END_KEY, target.to, None, now)
        for target in spec.on_end
        if any(target.gets(event) for event in NotifyOn if event is not NotifyOn.ALERT)
    ]


class SqlNotificationStore:
    """NotificationStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record_alert(
        self, run: RunId, alert: Alert, /, *, attempt: AttemptId | None, now: datetime
    ) -> bool:
        def write(conn: Connection) -> bool:
            text = conn.execute(
                select(run_contents.c.spec).where(run_contents.c.run == run)
            ).scalar_one_or_none()
            if text is None:
                raise NotFound(f"no run has the id {run}")
            key = alert.key(attempt)
            marks = select(table.c.key).where(table.c.run == run, table.c.target == "")
            stored = set(conn.execute(marks).scalars())
            if key in stored or len(stored) >= MAX_ALERTS:
                return False
            mark = {**_row(run, key, "", alert, now), "state": str(DeliveryState.SENT)}
            targets: Sequence[NotifyTarget] = decode_spec(text).on_end
            rows = [_row(run, key, each.to, alert, now) for each in targets if each.gets(NotifyOn.ALERT)]
            conn.execute(table.insert(), [mark, *rows])
            _add_event(conn, run, RunEvent(alert.at, RunEventKind.ALERT, alert_sentence(alert)))
            return True

        return await self._database.write(write)

    async def claim_notifications(self, limit: int, /, *, now: datetime) -> Sequence[Notification]:
        query = (
            select(table)
            .join(runs, runs.c.id == table.c.run)
            .where(
                table.c.state == _PENDING,
                table.c.next_at <= to_us(now),
                or_(
                    table.c.key != END_KEY,
                    and_(runs.c.phase.in_(_FINAL), runs.c.ended_at <= to_us(now - END_DELAY)),
                ),
            )
            .order_by(table.c.next_at, table.c.run, table.c.key, table.c.target)
            .limit(limit)
        )
        if not await self._database.read(lambda conn: conn.execute(query).first()):
            return ()

        def write(conn: Connection) -> list[Notification]:
            claimed = [_to_notification(row) for row in conn.execute(query.with_for_update(of=table))]
            for each in claimed:
                conn.execute(update(table).where(_is(each)).values(next_at=to_us(now + CLAIM)))
            return claimed

        return await self._database.write(write)

    async def discard_notification(self, notification: Notification, /) -> None:
        await self._database.write(lambda conn: conn.execute(delete(table).where(_is(notification))))

    async def record_sent(self, notification: Notification, /, *, now: datetime) -> None:
        sentence = sent_sentence(notification)

        def write(conn: Connection) -> None:
            done = update(table).where(_is(notification), table.c.state == _PENDING)
            if conn.execute(done.values(state=str(DeliveryState.SENT))).rowcount:
                _add_event(conn, notification.run, RunEvent(now, RunEventKind.NOTIFIED, sentence))

        await self._database.write(write)

    async def record_not_sent(self, notification: Notification, reason: str, /, *, now: datetime) -> None:
        tries = notification.tries + 1
        next_at = retry_at(tries, now)

        def write(conn: Connection) -> None:
            pending = update(table).where(_is(notification), table.c.state == _PENDING)
            if next_at is not None:
                conn.execute(pending.values(tries=tries, next_at=to_us(next_at)))
            elif conn.execute(pending.values(tries=tries, state=str(DeliveryState.FAILED))).rowcount:
                sentence = not_sent_sentence(notification, reason)
                _add_event(conn, notification.run, RunEvent(now, RunEventKind.NOTIFIED, sentence))

        await self._database.write(write)

    async def list_inbox(
        self,
        user: str,
        /,
        *,
        limit: int,
        before: InboxPosition | None = None,
        after: datetime | None = None,
    ) -> Sequence[InboxEntry]:
        return await self._database.read(lambda conn: list_entries(conn, user, limit, before, after))

    async def inbox_read_until(self, user: str, /) -> datetime | None:
        return await self._database.read(lambda conn: read_until(conn, user))

    async def mark_inbox_read(self, user: str, /, *, until: datetime) -> datetime:
        return await self._database.write(lambda conn: write_read_until(conn, user, until))


def _is(notification: Notification) -> ColumnElement[bool]:
    return and_(
        table.c.run == notification.run,
        table.c.key == notification.key,
        table.c.target == notification.to,
    )


def _row(run: RunId, key: str, to: str, alert: Alert | None, now: datetime) -> dict[str, Any]:
    return {
        "run": run,
        "key": key,
        "target": to,
        "state": _PENDING,
        "alert": None if alert is None else msgspec.json.encode(alert).decode(),
        "next_at": to_us(now),
        "tries": 0,
    }


def _add_event(conn: Connection, run: RunId, event: RunEvent) -> None:
    conn.execute(
        run_events.insert().values(run=run, at=to_us(event.at), kind=str(event.kind), detail=event.detail)
    )


def _to_notification(row: Row[Any]) -> Notification:
    return Notification(
        RunId(row.run),
        row.key,
        row.target,
        from_us(row.next_at),
        None if row.alert is None else decode_alert(row.alert),
        row.tries,
    )

"""Notifications about runs, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.inbox import InboxEntry, InboxPosition, sort_key
from hopyard.domain.notification import (
    CLAIM,
    END_DELAY,
    END_KEY,
    MAX_ALERTS,
    Alert,
    Notification,
    NotifyOn,
    alert_sentence,
    not_sent_sentence,
    retry_at,
    sent_sentence,
)
from hopyard.domain.run import RunEvent, RunEventKind
from hopyard.errors import NotFound
from hopyard.stores.memory.state import MemoryState


class MemoryNotificationStore:
    """Implements `hopyard.interfaces.notification_store.NotificationStore`."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    async def record_alert(
        self, run: RunId, alert: Alert, /, *, attempt: AttemptId | None, now: datetime
    ) -> bool:
        row = self._state.runs.get(run)
        if row is None:
            raise NotFound(f"no run has the id {run}")
        key = alert.key(attempt)
        if key in row.alerts or len(row.alerts) >= MAX_ALERTS:
            return False
        row.alerts[key] = now, alert
        row.events.append(RunEvent(alert.at, RunEventKind.ALERT, alert_sentence(alert)))
        for target in row.spec.on_end:
            if target.gets(NotifyOn.ALERT):
                row.notifications[key, target.to] = Notification(run, key, target.to, now, alert)
        return True

    async def claim_notifications(self, limit: int, /, *, now: datetime) -> Sequence[Notification]:
        due = [
            each
            for row in self._state.runs.values()
            for each in row.notifications.values()
            if each.next_at <= now
            and (each.key != END_KEY or (row.ended_at is not None and row.ended_at <= now - END_DELAY))
        ]
        due.sort(key=lambda each: (each.next_at, each.run, each.key, each.to))
        for each in due[:limit]:
            self._pending(each)[each.key, each.to] = replace(each, next_at=now + CLAIM)
        return due[:limit]

    async def discard_notification(self, notification: Notification, /) -> None:
        self._pending(notification).pop((notification.key, notification.to), None)

    async def record_sent(self, notification: Notification, /, *, now: datetime) -> None:
        if self._pending(notification).pop((notification.key, notification.to), None) is not None:
            self._add_event(notification.run, now, sent_sentence(notification))

    async def record_not_sent(self, notification: Notification, reason: str, /, *, now: datetime) -> None:
        pending, key = self._pending(notification), (notification.key, notification.to)
        if key not in pending:
            return
        next_at = retry_at(notification.tries + 1, now)
        if next_at is not None:
            pending[key] = replace(notification, next_at=next_at, tries=notification.tries + 1)
        else:
            del pending[key]
            self._add_event(notification.run, now, not_sent_sentence(notification, reason))

    async def list_inbox(
        self,
        user: str,
        /,
        *,
        limit: int,
        before: InboxPosition | None = None,
        after: datetime | None = None,
    ) -> Sequence[InboxEntry]:
        found: list[InboxEntry] = []
        for run, row in self._state.runs.items():
            if row.name.user == user:
                found += [
                    InboxEntry(InboxPosition(at, run, key), alert) for key, (at, alert) in row.alerts.items()
                ]
                if row.phase.is_final and row.ended_at is not None and row.spec.parent is None:
                    found.append(InboxEntry(InboxPosition(row.ended_at, run, END_KEY)))
        found = [
            entry
            for entry in found
            if (before is None or sort_key(entry.position) < sort_key(before))
            and (after is None or entry.position.at > after)
        ]
        return sorted(found, key=lambda entry: sort_key(entry.position), reverse=True)[:limit]

    async def inbox_read_until(self, user: str, /) -> datetime | None:
        return self._state.inbox_reads.get(user)

    async def mark_inbox_read(self, user: str, /, *, until: datetime) -> datetime:
        stored = self._state.inbox_reads.get(user)
        self._state.inbox_reads[user] = until if stored is None else max(stored, until)
        return self._state.inbox_reads[user]

    def _pending(self, notification: Notification) -> dict[tuple[str, str], Notification]:
        row = self._state.runs.get(notification.run)
        return {} if row is None else row.notifications

    def _add_event(self, run: RunId, at: datetime, sentence: str) -> None:
        self._state.runs[run].events.append(RunEvent(at, RunEventKind.NOTIFIED, sentence))

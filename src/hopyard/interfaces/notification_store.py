from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.inbox import InboxEntry, InboxPosition
from hopyard.domain.notification import Alert, Notification


class NotificationStore(Protocol):
    """The notifications about runs that are not sent yet, and the inboxes of users. The notifications of the
    end of a run are stored with it."""

    async def record_alert(
        self, run: RunId, alert: Alert, /, *, attempt: AttemptId | None, now: datetime
    ) -> bool:
        """Records an alert as an event of its run, and its notifications. Returns False if it is already
        recorded, or the run has too many. Raises NotFound."""
        ...

    async def claim_notifications(self, limit: int, /, *, now: datetime) -> Sequence[Notification]:
        """Returns notifications to send now, the oldest first: of alerts, and of runs that have ended.

        Each is claimed for `CLAIM`: until then no other call returns it, so that it is sent by one server.
        """
        ...

    async def discard_notification(self, notification: Notification, /) -> None:
        """Removes a notification that its target does not get."""
        ...

    async def record_sent(self, notification: Notification, /, *, now: datetime) -> None:
        """Records that a notification was sent, with an event of the run."""
        ...

    async def record_not_sent(self, notification: Notification, reason: str, /, *, now: datetime) -> None:
        """Records a failed attempt at delivery. The last one gives the notification up, with an event."""

    async def list_inbox(
        self,
        user: str,
        /,
        *,
        limit: int,
        before: InboxPosition | None = None,
        after: datetime | None = None,
    ) -> Sequence[InboxEntry]:
        """Returns the alerts of the user's runs, and the ends of those that are no trials, newest first:
        before a position, and later than `after`."""
        ...

    async def inbox_read_until(self, user: str, /) -> datetime | None:
        """Returns the time until which the user has read the inbox; None for nothing yet."""
        ...

    async def mark_inbox_read(self, user: str, /, *, until: datetime) -> datetime:
        """Marks entries until this time as read. Returns the stored time, which is never set back. The mark
        is removed with its user."""
        ...

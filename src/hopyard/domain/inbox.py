"""The inbox of a user: alerts and ends of the user's runs, newest first, and how far they are read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hopyard.domain.ids import RunId
from hopyard.domain.notification import Alert

MAX_UNREAD = 100  # that are counted


@dataclass(frozen=True, slots=True)
class InboxPosition:
    """The place of an entry: later entries have greater positions. key: of the alert, or `END_KEY`."""

    at: datetime
    run: RunId
    key: str


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """alert: None for the end of the run. The time of an alert in its position is that of its arrival."""

    position: InboxPosition
    alert: Alert | None = None


def sort_key(position: InboxPosition) -> tuple[datetime, str, str]:
    """Returns what entries are ordered by, oldest first."""
    return position.at, position.run, position.key

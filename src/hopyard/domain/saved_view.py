"""Views that users keep: a named filter, order, grouping, set of columns and page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

MAX_VIEW_BYTES = 64 * 1024  # of its JSON
MAX_VIEWS = 1000  # per user


@dataclass(frozen=True, slots=True)
class SavedView:
    """view: a JSON object that the clients define. shared: every user may read it."""

    user: str
    name: str
    view: str
    shared: bool
    updated_at: datetime

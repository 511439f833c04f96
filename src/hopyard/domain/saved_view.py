"""Views that users keep: a named filter, order, grouping, set of columns and page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hopyard.errors import Conflict

MAX_VIEW_BYTES = 64 * 1024  # of its JSON
MAX_VIEWS = 1000  # per user


@dataclass(frozen=True, slots=True)
class SavedView:
    """view: a JSON object that the clients define. shared: every user may read it. revision: counts the
    changes, from 1."""

    user: str
    name: str
    view: str
    shared: bool
    updated_at: datetime
    revision: int = 1

    def has_content_of(self, other: SavedView) -> bool:
        return (self.view, self.shared) == (other.view, other.shared)


def check_base(user: str, name: str, current: SavedView | None, base: int | None) -> None:
    """Raises Conflict unless the view is at revision `base`. 0: no such view exists; None: any."""
    revision = 0 if current is None else current.revision
    if base is None or base == revision:
        return
    state = (
        "was removed"
        if current is None
        else f"is at revision {revision}, not {base}"
        if base
        else f"exists already, at revision {revision}"
    )
    raise Conflict(f"the view `{name}` of {user} {state}", hints=("read it again, and repeat the change",))

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hopyard.domain.change import Change, Position


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Rows of the log in order. until_seq, until_tag: the row up to which everything was read. oldest_seq:
    the oldest row that still exists."""

    changes: Sequence[Change]
    until_seq: int
    until_tag: int
    oldest_seq: int


class ChangeFeed(Protocol):
    """The log of changes, in the order of their commits."""

    def on_commit(self, listener: Callable[[], None], /) -> None:
        """Calls `listener()` on any thread after each write of this process. Writes of other servers are not
        notified."""

    async def newest(self) -> Position:
        """Returns the position after all changes up to now."""
        ...

    async def is_complete_after(self, position: Position, /) -> bool:
        """Returns whether all changes after this position are in the log: the position is of this database,
        and no later row was removed."""
        ...

    async def read(self, after: int, /, *, limit: int, frequent: bool | None = None) -> ChangePage:
        """Returns at most `limit` rows after the row `after`. frequent: only rows of this kind."""
        ...

    async def prune(self, keep: int, /) -> None:
        """Removes all rows but the newest `keep`, about."""

"""The clock of the database: which of its parts were changed when. See the table `marks`.

Safe without locks of their own: only one writing transaction is under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import Connection, select, update

from hopyard.domain.ids import Version
from hopyard.stores.sql.hot import Hot
from hopyard.stores.sql.tables import marks


class Marks(NamedTuple):
    clock: int = -1
    version: int = -1
    runs: int = -1
    attempts: int = -1
    nodes: int = -1
    queues: int = -1
    reservations: int = -1
    promises: int = -1
    learnt: int = -1
    removed: int = -1


_READ = Hot(select(*(marks.c[name] for name in Marks._fields)))
_WRITE = Hot(update(marks))


def read_marks(conn: Connection) -> Marks:
    (found,) = _READ.rows(conn)
    return Marks(*found)


class Stamp:
    """One write's place on the clock. `now` is what the rows that it changes are touched with.
    written: told of the marks when they are written."""

    def __init__(
        self,
        conn: Connection,
        before: Marks | None = None,
        *,
        written: Callable[[Marks], None] = lambda _: None,
    ) -> None:
        self._conn, self._tell = conn, written
        self.before = read_marks(conn) if before is None else before
        self.now = self.before.clock + 1
        self._after = self._written = self.before
        self._touched = set[tuple[tuple[str, ...], bool]]()

    def touch(self, *parts: str, visible: bool = True) -> None:
        """Something of these parts was changed; `visible` to a policy."""
        if (parts, visible) in self._touched:
            return
        self._touched.add((parts, visible))
        changed = dict.fromkeys(("clock", "version", *parts) if visible else ("clock", *parts), self.now)
        self._after = self._after._replace(**changed)

    def remove(self, touched: int) -> None:
        """A row is gone that was touched at this clock: who knows the database as of an earlier one has to
        look for it."""
        self._after = self._after._replace(removed=max(self._after.removed, touched))

    def write(self) -> Version:
        """Count on what was touched, if anything was; the version that a policy sees now."""
        if self._after != self._written:
            _WRITE.change(self._conn, [self._after._asdict()])
            self._written = self._after
            self._tell(self._after)
        return Version(self._after.version)

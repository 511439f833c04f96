"""The clock of the database, and the versions of its parts. See the table `marks`.

Safe without locks: only one writing transaction runs at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import Connection, select, update

from hopyard.domain.ids import Version
from hopyard.stores.sql.raw_statements import RawStatement
from hopyard.stores.sql.tables import marks


class TableVersions(NamedTuple):
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


_SELECT_VERSIONS = RawStatement(select(*(marks.c[name] for name in TableVersions._fields)))
_UPDATE_VERSIONS = RawStatement(update(marks))


def read_versions(conn: Connection) -> TableVersions:
    (row,) = _SELECT_VERSIONS.fetch_all(conn)
    return TableVersions(*row)


class WriteStamp:
    """The position of one write on the clock. `now` is the clock for the rows that it changes. on_written:
    called with the versions once they are written."""

    def __init__(
        self,
        conn: Connection,
        before: TableVersions | None = None,
        *,
        on_written: Callable[[TableVersions], None] = lambda _: None,
    ) -> None:
        self._conn, self._on_written = conn, on_written
        self.before = read_versions(conn) if before is None else before
        self.now = self.before.clock + 1
        self._after = self._written = self.before
        self._is_touched = set[tuple[tuple[str, ...], bool]]()

    def touch(self, *tables: str, visible: bool = True) -> None:
        """Marks tables as changed. visible: whether a policy sees the change."""
        if (tables, visible) in self._is_touched:
            return
        self._is_touched.add((tables, visible))
        changed = dict.fromkeys(("clock", "version", *tables) if visible else ("clock", *tables), self.now)
        self._after = self._after._replace(**changed)

    def mark_removed(self, touched: int) -> None:
        """Marks the deletion of a row that was touched at this clock: readers of an earlier state must look
        for deletions."""
        self._after = self._after._replace(removed=max(self._after.removed, touched))

    def write(self) -> Version:
        """Writes the versions if any table was touched; returns the version that a policy sees now."""
        if self._after != self._written:
            _UPDATE_VERSIONS.execute_many(self._conn, [self._after._asdict()])
            self._written = self._after
            self._on_written(self._after)
        return Version(self._after.version)

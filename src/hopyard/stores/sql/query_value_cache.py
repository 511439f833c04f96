"""Keeps the decoded values of runs in memory for queries of listings: only changed runs are read again.

The log of changes has a row for each change of a run, written by triggers, so also for changes by other
servers. `runs.touched` covers the columns that no trigger compares. If the log no longer has the row that was
read last, too much has changed since, or the database is another copy: then everything is read again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select, union

from hopyard.domain.change import ChangeKind
from hopyard.domain.ids import RunId
from hopyard.domain.run_query import RunValues
from hopyard.interfaces.run_store import RunFilter
from hopyard.stores.sql.query_value_rows import CachedRun, read_matching, read_runs
from hopyard.stores.sql.raw_statements import RawStatement
from hopyard.stores.sql.run_filters import matching_ids
from hopyard.stores.sql.run_rows import HOLD_POSITION
from hopyard.stores.sql.tables import IDS_PER_QUERY, changes, holds, runs
from hopyard.stores.sql.versions import read_versions

MAX_CACHED_RUNS = 20_000  # about two kilobytes each
_NEWEST_CHANGE = RawStatement(select(changes.c.seq, changes.c.tag).order_by(changes.c.seq.desc()).limit(1))
_TAG = RawStatement(select(changes.c.tag).where(changes.c.seq == bindparam("b_seq")))
_CHANGED_RUNS = RawStatement(
    union(
        select(changes.c.subject).where(
            changes.c.seq > bindparam("b_seq"), changes.c.kind == str(ChangeKind.RUN)
        ),
        select(runs.c.id).where(runs.c.touched > bindparam("b_clock")),
    )
)
_POSITIONS = RawStatement(select(holds.c.run, HOLD_POSITION).join(runs, runs.c.id == holds.c.run))


class _CachedState(NamedTuple):
    """The state of the database that the cache has: its newest change, and its clock."""

    seq: int
    tag: int
    clock: int


class QueryValueCache:
    """The values of the newest runs, at most `max_runs` of them. May be used by several threads, one at a
    time."""

    def __init__(self, max_runs: int = MAX_CACHED_RUNS) -> None:
        self._max_runs = max_runs
        self._lock = threading.Lock()
        self._synced: _CachedState | None = None
        self._runs: dict[str, CachedRun] = {}
        self._positions: dict[str, int] = {}  # of waiting runs in their queues

    def __len__(self) -> int:
        return len(self._runs)

    def read(self, conn: Connection, where: RunFilter, now: datetime | None) -> list[tuple[RunId, RunValues]]:
        """Returns the runs as `RunStore.query_values`, in the state that the connection sees."""
        with self._lock:
            self._sync(conn)
            ids: Sequence[RunId] = conn.execute(matching_ids(where)).scalars().all()
            read = self._read_missing(conn, where, ids)
            found = [(run, self._runs.get(run) or read.get(run)) for run in ids]
            self._keep(read)
        return [(run, decoded.values_at(now)) for run, decoded in found if decoded is not None]

    def _sync(self, conn: Connection) -> None:
        """Removes the runs that have changed, and updates the positions of the others."""
        ((seq, tag),) = _NEWEST_CHANGE.fetch_all(conn)
        now, before = _CachedState(seq, tag, read_versions(conn).clock), self._synced
        if now != before:
            if before is None or not _is_continued(conn, before, now):
                self._synced = None
                self._runs.clear()
            else:
                bounds = {"b_seq": before.seq, "b_clock": before.clock}
                for (run,) in _CHANGED_RUNS.fetch_all(conn, bounds):
                    self._runs.pop(run, None)
        positions = {str(run): int(position) for run, position in _POSITIONS.fetch_all(conn)}
        if positions != self._positions:
            for run in positions.keys() | self._positions.keys():
                decoded = self._runs.get(run)
                if decoded is not None and positions.get(run) != self._positions.get(run):
                    self._runs[run] = decoded.with_position(positions.get(run))
            self._positions = positions
        self._synced = now

    def _read_missing(
        self, conn: Connection, where: RunFilter, ids: Sequence[RunId]
    ) -> dict[RunId, CachedRun]:
        """Returns the runs that the cache lacks, newest first if they are many."""
        missing = [run for run in ids if run not in self._runs]
        if len(missing) > max(IDS_PER_QUERY, len(ids) // 2):
            return dict(read_matching(conn, where, self._positions))
        return dict(read_runs(conn, missing, self._positions))

    def _keep(self, read: dict[RunId, CachedRun]) -> None:
        self._runs.update(islice(read.items(), self._max_runs))
        if len(self._runs) > self._max_runs:
            for run in sorted(self._runs)[: len(self._runs) - self._max_runs]:  # ids sort by time
                del self._runs[run]


def _is_continued(conn: Connection, before: _CachedState, now: _CachedState) -> bool:
    """Returns whether the log has all changes since `before`."""
    tags = _TAG.fetch_all(conn, {"b_seq": before.seq})
    return [tag for (tag,) in tags] == [before.tag] and now.clock >= before.clock

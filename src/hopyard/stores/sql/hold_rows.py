"""The holds of waiting runs and their positions. They are written often for a long queue, so only changes are
written.

When the first run of a queue starts, all positions change. So a row stores `rank`, and the position is rank -
`hold_base:QUEUE`: only the base changes instead of ten thousand rows. The rows are cached in memory while one
leader writes them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, delete, select, update

from hopyard.domain.ids import RunId
from hopyard.domain.plan_record import HoldRecord
from hopyard.domain.run import RunPhase
from hopyard.stores.sql.codec import decode_words, encode_words, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.raw_statements import RawStatement
from hopyard.stores.sql.tables import counters, holds, runs
from hopyard.stores.sql.versions import read_versions

BASE_COUNTER_PREFIX = "hold_base:"
# smaller changes of an expected start are ignored
_EXPECTED_START_TOLERANCE_US = timedelta(seconds=1) // timedelta(microseconds=1)

_SELECT_PENDING = (
    select(
        runs.c.id,
        runs.c.queue,
        runs.c.touched,
        holds.c.rank,
        holds.c.reason,
        holds.c.detail,
        holds.c.blocked_by,
        holds.c.expected_at,
    )
    .outerjoin(holds, holds.c.run == runs.c.id)
    .where(runs.c.phase == str(RunPhase.QUEUED), runs.c.held_by.is_(None))
)
_SELECT_CHANGED = (
    select(runs.c.id, runs.c.queue, runs.c.touched, runs.c.phase, runs.c.held_by, holds.c.run)
    .outerjoin(holds, holds.c.run == runs.c.id)
    .where(runs.c.touched > bindparam("b_clock"))
)
_SELECT_BASES = select(counters.c.name, counters.c.value).where(
    counters.c.name.startswith(BASE_COUNTER_PREFIX, autoescape=True)
)
_UPDATE_BASE = update(counters).where(counters.c.name == bindparam("b_name"))
_UPDATE_HOLD = RawStatement(update(holds).where(holds.c.run == bindparam("b_run")))
_DELETE_HOLD = RawStatement(delete(holds).where(holds.c.run == bindparam("b_run")))
_INSERT_HOLD = RawStatement(holds.insert())


class _Row(NamedTuple):
    rank: int
    reason: str
    detail: str
    blocked_by: tuple[str, ...]
    expected_at: int | None


HoldChange = tuple[RunId, _Row]
PlannedHold = tuple[HoldRecord, str, _Row | None]  # a hold, its queue, and its stored row


class HoldRows:
    """The rows of holds. Used by the writing thread alone."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reset()
        database.on_undo(self._on_undone)

    def _reset(self) -> None:
        self._epoch, self._transaction, self._clock = -1, -1, -1
        self._rows: dict[str, _Row] = {}
        # run → its queue, and the version of its last change
        self._pending: dict[str, tuple[str, int]] = {}
        self._bases: dict[str, int] = {}

    def _on_undone(self, transaction: int) -> None:
        if self._transaction == transaction:
            self._reset()

    def delete(self, conn: Connection, run_ids: Sequence[str]) -> None:
        """Deletes the holds of runs that no longer wait."""
        if run_ids:
            self._transaction = self._database.transaction
            _DELETE_HOLD.execute_many(conn, [{"b_run": run} for run in run_ids])
            for run in run_ids:
                self._rows.pop(run, None)
                self._pending.pop(run, None)

    def find_changes(
        self, conn: Connection, planned: Sequence[HoldRecord], *, based_on: int, epoch: int
    ) -> list[HoldChange]:
        """Returns the changes to write, for runs that wait unchanged since the version `based_on`. Updates
        the bases already."""
        self._refresh(conn, epoch)
        rows, waiting = self._rows, self._pending
        unchanged = [
            (hold, pending[0], rows.get(hold.gang))
            for hold in planned
            if (pending := waiting.get(hold.gang)) and pending[1] <= based_on
        ]
        bases = self._best_bases(conn, unchanged)
        changes: list[HoldChange] = []
        for hold, queue, stored in unchanged:
            rank = hold.position + bases[queue]
            if stored is None or stored.rank != rank or not _is_same_hold(stored, hold):
                changes.append((RunId(hold.gang), _to_row(hold, rank)))
        return changes

    def write(
        self, conn: Connection, changes: Sequence[HoldChange], *, based_on: int, epoch: int
    ) -> list[RunId]:
        """Writes some of the changes; returns the runs that wait unchanged, whose holds were written."""
        self._refresh(conn, epoch)
        waiting = self._pending
        unchanged = [
            (run, row) for run, row in changes if (pending := waiting.get(run)) and pending[1] <= based_on
        ]
        inserts = [{"run": run, **_to_values(row)} for run, row in unchanged if run not in self._rows]
        updates = [{"b_run": run, **_to_values(row)} for run, row in unchanged if run in self._rows]
        _INSERT_HOLD.execute_many(conn, inserts)
        _UPDATE_HOLD.execute_many(conn, updates)
        self._rows.update(unchanged)
        return [run for run, _ in unchanged]

    def _refresh(self, conn: Connection, epoch: int) -> None:
        versions = read_versions(conn)
        if epoch != self._epoch or versions.removed > self._clock or versions.clock < self._clock:
            self._read(conn)
        elif versions.runs > self._clock:
            for run, queue, touched, phase, held_by, row in conn.execute(
                _SELECT_CHANGED, {"b_clock": self._clock}
            ):
                if row is None:  # another server changed the run
                    self._rows.pop(run, None)
                if phase == RunPhase.QUEUED and held_by is None:
                    self._pending[run] = queue, touched
                else:
                    self._pending.pop(run, None)
                    self._rows.pop(run, None)
        self._epoch, self._clock = epoch, versions.clock
        self._transaction = self._database.transaction

    def _read(self, conn: Connection) -> None:
        self._reset()
        self._bases = {
            name.removeprefix(BASE_COUNTER_PREFIX): value for name, value in conn.execute(_SELECT_BASES)
        }
        for run, queue, touched, rank, reason, detail, blocked_by, expected_at in conn.execute(
            _SELECT_PENDING
        ):
            self._pending[run] = queue, touched
            if rank is not None:
                self._rows[run] = _Row(rank, reason, detail, decode_words(blocked_by), expected_at)

    def _best_bases(self, conn: Connection, planned: Sequence[PlannedHold]) -> dict[str, int]:
        """Returns for each queue the base that keeps most rows unchanged; writes changed bases."""
        shifts: dict[str, list[int]] = defaultdict(list)
        for hold, queue, stored in planned:
            queue_shifts = shifts[queue]
            if stored is not None:
                queue_shifts.append(stored.rank - hold.position)
        bases: dict[str, int] = {}
        for queue, queue_shifts in shifts.items():
            votes = Counter(queue_shifts)
            current = self._bases.get(queue, 0)
            best, count = max(
                votes.items(), key=lambda pair: (pair[1], pair[0] == current), default=(current, 0)
            )
            bases[queue] = current if count == votes[current] else best
            if bases[queue] != current:
                self._set_base(conn, queue, bases[queue])
        return bases

    def _set_base(self, conn: Connection, queue: str, value: int) -> None:
        exists = queue in self._bases
        self._bases[queue] = value
        if exists:
            conn.execute(_UPDATE_BASE, {"b_name": BASE_COUNTER_PREFIX + queue, "value": value})
        else:
            conn.execute(counters.insert(), {"name": BASE_COUNTER_PREFIX + queue, "value": value})


def _to_row(hold: HoldRecord, rank: int) -> _Row:
    expected_at = None if hold.expected_at is None else to_us(hold.expected_at)
    return _Row(rank, str(hold.reason), hold.detail, hold.blocked_by, expected_at)


def _is_same_hold(stored: _Row, hold: HoldRecord) -> bool:
    """Returns whether the hold equals the row, ignoring the rank."""
    if stored.reason != hold.reason or stored.detail != hold.detail or stored.blocked_by != hold.blocked_by:
        return False
    if stored.expected_at is None or hold.expected_at is None:
        return stored.expected_at is None and hold.expected_at is None
    return abs(stored.expected_at - to_us(hold.expected_at)) < _EXPECTED_START_TOLERANCE_US


def _to_values(row: _Row) -> dict[str, Any]:
    return {**row._asdict(), "blocked_by": encode_words(row.blocked_by)}

"""Why runs wait, and where in their queue. Written again and again for a long queue, so only what changed is.

When the head of a queue leaves, everybody moves up. So a row keeps `rank`, and the position is rank -
`hold_base:QUEUE`: the base moves instead of ten thousand rows. What stands in the rows is kept in memory, for
as long as one leader writes them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, delete, select, update

from hopyard.domain.cluster import Hold
from hopyard.domain.ids import RunId
from hopyard.domain.run import RunPhase
from hopyard.stores.sql.codec import decode_words, encode_words, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.hot import Hot
from hopyard.stores.sql.marks import read_marks
from hopyard.stores.sql.tables import counters, holds, runs

BASE = "hold_base:"
# an expected start that moves by less is the same
_JITTER_US = timedelta(seconds=1) // timedelta(microseconds=1)

_WAITING = (
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
_SINCE = (
    select(runs.c.id, runs.c.queue, runs.c.touched, runs.c.phase, runs.c.held_by, holds.c.run)
    .outerjoin(holds, holds.c.run == runs.c.id)
    .where(runs.c.touched > bindparam("b_clock"))
)
_BASES = select(counters.c.name, counters.c.value).where(counters.c.name.startswith(BASE, autoescape=True))
_SET_BASE = update(counters).where(counters.c.name == bindparam("b_name"))
_CHANGE = Hot(update(holds).where(holds.c.run == bindparam("b_run")))
_REMOVE = Hot(delete(holds).where(holds.c.run == bindparam("b_run")))
_INSERT = Hot(holds.insert())


class _Row(NamedTuple):
    rank: int
    reason: str
    detail: str
    blocked_by: tuple[str, ...]
    expected_at: int | None


Change = tuple[RunId, _Row]
Standing = tuple[Hold, str, _Row | None]  # a hold, its queue, and the row that stands


class HoldRows:
    """Used by the writing thread alone."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._forget()
        database.on_undo(self._undone)

    def _forget(self) -> None:
        self._epoch, self._transaction, self._clock = -1, -1, -1
        self._rows: dict[str, _Row] = {}
        # run → its queue, and the version at which it was changed
        self._waiting: dict[str, tuple[str, int]] = {}
        self._bases: dict[str, int] = {}

    def _undone(self, transaction: int) -> None:
        if self._transaction == transaction:
            self._forget()

    def drop(self, conn: Connection, gone: Sequence[str]) -> None:
        """These wait no longer."""
        if gone:
            self._transaction = self._database.transaction
            _REMOVE.change(conn, [{"b_run": run} for run in gone])
            for run in gone:
                self._rows.pop(run, None)
                self._waiting.pop(run, None)

    def compare(self, conn: Connection, wanted: Sequence[Hold], *, based_on: int, epoch: int) -> list[Change]:
        """What is to be written of these, of runs that still wait as they did at the version `based_on`.
        The bases are moved already."""
        self._refresh(conn, epoch)
        rows, waiting = self._rows, self._waiting
        still = [
            (hold, found[0], rows.get(hold.gang))
            for hold in wanted
            if (found := waiting.get(hold.gang)) and found[1] <= based_on
        ]
        bases = self._best_bases(conn, still)
        changes: list[Change] = []
        for hold, queue, there in still:
            rank = hold.position + bases[queue]
            if there is None or there.rank != rank or not _same(there, hold):
                changes.append((RunId(hold.gang), _row(hold, rank)))
        return changes

    def write(self, conn: Connection, changes: Sequence[Change], *, based_on: int, epoch: int) -> list[RunId]:
        """Write some of them; those that were written, since their runs still wait as they did."""
        self._refresh(conn, epoch)
        waiting = self._waiting
        still = [(run, row) for run, row in changes if (found := waiting.get(run)) and found[1] <= based_on]
        fresh = [{"run": run, **_values(row)} for run, row in still if run not in self._rows]
        moved = [{"b_run": run, **_values(row)} for run, row in still if run in self._rows]
        _INSERT.change(conn, fresh)
        _CHANGE.change(conn, moved)
        self._rows.update(still)
        return [run for run, _ in still]

    def _refresh(self, conn: Connection, epoch: int) -> None:
        marks = read_marks(conn)
        if epoch != self._epoch or marks.removed > self._clock or marks.clock < self._clock:
            self._read(conn)
        elif marks.runs > self._clock:
            for run, queue, touched, phase, held_by, row in conn.execute(_SINCE, {"b_clock": self._clock}):
                if row is None:  # another server changed the run
                    self._rows.pop(run, None)
                if phase == RunPhase.QUEUED and held_by is None:
                    self._waiting[run] = queue, touched
                else:
                    self._waiting.pop(run, None)
                    self._rows.pop(run, None)
        self._epoch, self._clock = epoch, marks.clock
        self._transaction = self._database.transaction

    def _read(self, conn: Connection) -> None:
        self._forget()
        self._bases = {name.removeprefix(BASE): value for name, value in conn.execute(_BASES)}
        for run, queue, touched, rank, reason, detail, blocked_by, expected_at in conn.execute(_WAITING):
            self._waiting[run] = queue, touched
            if rank is not None:
                self._rows[run] = _Row(rank, reason, detail, decode_words(blocked_by), expected_at)

    def _best_bases(self, conn: Connection, wanted: Sequence[Standing]) -> dict[str, int]:
        """For each queue the base under which most rows can stay as they are; it is written where it
        moved."""
        shifts: dict[str, list[int]] = defaultdict(list)
        for hold, queue, there in wanted:
            shift = shifts[queue]
            if there is not None:
                shift.append(there.rank - hold.position)
        bases: dict[str, int] = {}
        for queue, shift in shifts.items():
            votes = Counter(shift)
            before = self._bases.get(queue, 0)
            best, count = max(
                votes.items(), key=lambda pair: (pair[1], pair[0] == before), default=(before, 0)
            )
            bases[queue] = before if count == votes[before] else best
            if bases[queue] != before:
                self._set_base(conn, queue, bases[queue])
        return bases

    def _set_base(self, conn: Connection, queue: str, value: int) -> None:
        known = queue in self._bases
        self._bases[queue] = value
        if known:
            conn.execute(_SET_BASE, {"b_name": BASE + queue, "value": value})
        else:
            conn.execute(counters.insert(), {"name": BASE + queue, "value": value})


def _row(hold: Hold, rank: int) -> _Row:
    expected_at = None if hold.expected_at is None else to_us(hold.expected_at)
    return _Row(rank, str(hold.reason), hold.detail, hold.blocked_by, expected_at)


def _same(there: _Row, hold: Hold) -> bool:
    """But for its rank."""
    if there.reason != hold.reason or there.detail != hold.detail or there.blocked_by != hold.blocked_by:
        return False
    if there.expected_at is None or hold.expected_at is None:
        return there.expected_at is None and hold.expected_at is None
    return abs(there.expected_at - to_us(hold.expected_at)) < _JITTER_US


def _values(row: _Row) -> dict[str, Any]:
    return {**row._asdict(), "blocked_by": encode_words(row.blocked_by)}

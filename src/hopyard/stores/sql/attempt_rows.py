"""Rows of live attempts: found with what decides their fate, and changed only if they are still as they were found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, literal_column, select, update

from hopyard.domain.attempt import AttemptPhase, ExitKind
from hopyard.domain.attempt_news import After, Before
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.run import RunPhase
from hopyard.interfaces.cluster_store import Ended, Recorded
from hopyard.stores.sql.codec import decode_placement, decode_replicas, encode_exit, encode_replicas
from hopyard.stores.sql.counting import bump_version
from hopyard.stores.sql.tables import attempts, runs

# Written out, not bound, so that both databases see that the partial index serves it.
LIVE = attempts.c.live == literal_column("1")

# The join on the number is the guard against old news: only the newest attempt of a run can be found.
_FIND = (
    select(
        attempts.c.id,
        attempts.c.run,
        attempts.c.phase,
        attempts.c.replicas,
        attempts.c.placement,
        attempts.c.number,
        attempts.c.placed_at,
        attempts.c.started_at,
        runs.c.phase.label("run_phase"),
        runs.c.started_at.label("run_started_at"),
        runs.c.stop_requested,
        runs.c.max_attempts,
    )
    .join(runs, (runs.c.id == attempts.c.run) & (runs.c.attempts == attempts.c.number))
    .where(LIVE)
)
_FIND_ONE = _FIND.where(attempts.c.id == bindparam("b_key"))
_FIND_BY_RUN = _FIND.where(attempts.c.run == bindparam("b_key"))
_FIND_BY_ENGINE = _FIND.where(attempts.c.engine == bindparam("b_key")).order_by(attempts.c.id)

_GUARDED_ATTEMPT = update(attempts).where(attempts.c.id == bindparam("b_id"), attempts.c.phase == bindparam("b_phase"), LIVE)
_SAY = _GUARDED_ATTEMPT.values(replicas=bindparam("replicas"))
_MOVE = _GUARDED_ATTEMPT.values(phase=bindparam("phase"), replicas=bindparam("replicas"), started_at=bindparam("started_at"))
_END = _GUARDED_ATTEMPT.values(
    phase=bindparam("phase"),
    replicas=bindparam("replicas"),
    started_at=bindparam("started_at"),
    live=0,
    ended_at=bindparam("ended_at"),
    exit=bindparam("exit"),
)
_GUARDED_RUN = update(runs).where(runs.c.id == bindparam("b_id"), runs.c.phase == bindparam("b_phase"))
_MOVE_RUN = _GUARDED_RUN.values(phase=bindparam("phase"), started_at=bindparam("started_at"))
_END_RUN = _GUARDED_RUN.values(
    phase=bindparam("phase"), started_at=bindparam("started_at"), ended_at=bindparam("ended_at"), exit=bindparam("exit")
)
# Ends that only something that ran can come to.
_RAN = frozenset({ExitKind.EXIT_CODE, ExitKind.SIGNAL, ExitKind.OUT_OF_MEMORY, ExitKind.TIME_LIMIT})


@dataclass(frozen=True, slots=True)
class Found:
    """A live attempt as it stands in the database."""

    run: RunId
    before: Before
    placed_at: int
    started_at: int | None
    run_started_at: int | None


def find_live(
    conn: Connection, *, attempt: AttemptId | None = None, run: RunId | None = None, engine: str | None = None
) -> list[Found]:
    """The live newest attempts by exactly one of these keys."""
    query = _FIND_ONE if attempt is not None else _FIND_BY_RUN if run is not None else _FIND_BY_ENGINE
    return list(_found(conn.execute(query, {"b_key": attempt or run or engine or ""})))


def _found(rows: Any) -> Iterator[Found]:
    for row in rows:
        before = Before(
            attempt=AttemptId(row.id),
            phase=AttemptPhase(row.phase),
            replicas=decode_replicas(row.replicas),
            size=len(decode_placement(row.placement)),
            lost=row.number - 1,
            run_phase=RunPhase(row.run_phase),
            stop_requested=row.stop_requested,
            max_attempts=row.max_attempts,
        )
        yield Found(RunId(row.run), before, row.placed_at, row.started_at, row.run_started_at)


class Changes:
    """Writes what became of attempts and gathers what to tell of it."""

    def __init__(self, conn: Connection, now: int) -> None:
        self._conn = conn
        self._now = now
        self._changed: list[RunId] = []
        self._ended: list[Ended] = []
        self._requeued: list[RunId] = []
        self.seen_by_policy = False

    def make(self, found: Found, after: After | None) -> None:
        """Write one change (None: there is none), if the attempt is still as it was found."""
        if after is None:
            return
        guard = {"b_id": found.before.attempt, "b_phase": str(found.before.phase)}
        values: dict[str, Any] = {"replicas": encode_replicas(after.replicas)}
        if after.exit is None and after.phase is found.before.phase:
            self._conn.execute(_SAY, {**guard, **values})
            return
        values |= {"phase": str(after.phase), "started_at": self._started_at(found, after, found.started_at)}
        if after.exit is not None:
            values |= {"ended_at": self._now, "exit": encode_exit(after.exit)}
        written = self._conn.execute(_MOVE if after.exit is None else _END, {**guard, **values})
        if written.rowcount == 1:
            self._follow(found, after)

    def finish(self) -> Recorded:
        """What was changed; the version is counted on if a policy would see it."""
        if self._ended or self.seen_by_policy:
            bump_version(self._conn)
        return Recorded(tuple(self._changed), tuple(self._ended), tuple(self._requeued))

    def _follow(self, found: Found, after: After) -> None:
        """The run follows its attempt."""
        guard = {"b_id": found.run, "b_phase": str(found.before.run_phase)}
        values: dict[str, Any] = {"phase": str(after.run_phase)}
        if after.run_phase.final:
            started_at = self._started_at(found, after, found.run_started_at)
            values |= {"started_at": started_at, "ended_at": self._now, "exit": encode_exit(after.exit)}
            self._conn.execute(_END_RUN, {**guard, **values})
        elif after.run_phase is not found.before.run_phase:
            values["started_at"] = self._started_at(found, after, found.run_started_at)
            self._conn.execute(_MOVE_RUN, {**guard, **values})
        if after.run_phase is not found.before.run_phase:
            self._changed.append(found.run)
        if after.exit is not None:
            self._ended.append(Ended(found.run, found.before.attempt))
        if after.requeued:
            self._requeued.append(found.run)

    def _started_at(self, found: Found, after: After, known: int | None) -> int | None:
        if known is not None or found.before.phase is not AttemptPhase.STARTING:
            return known
        if after.phase is AttemptPhase.RUNNING:
            return self._now
        # It ran and ended between two words of its replica: when it began is not known better than by its placement.
        return found.placed_at if after.exit is not None and after.exit.kind in _RAN else None

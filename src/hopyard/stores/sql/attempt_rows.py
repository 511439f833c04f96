"""Writing what became of live attempts and of their runs: gathered first, then a few statements for all of
them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, update

from hopyard.domain.amounts import dominant_share, used_after
from hopyard.domain.attempt import AttemptPhase, ExitKind
from hopyard.domain.attempt_news import After
from hopyard.domain.durations import KEPT, history_keys, tells_duration
from hopyard.domain.ids import RunId
from hopyard.domain.queue import Used
from hopyard.domain.run import moved
from hopyard.domain.setbacks import Setback
from hopyard.interfaces.cluster_store import Ended, Recorded
from hopyard.stores.sql.codec import encode_exit, encode_replicas, from_us, to_us
from hopyard.stores.sql.history_rows import UsedKey, write_durations, write_used
from hopyard.stores.sql.hot import Hot
from hopyard.stores.sql.live import Live
from hopyard.stores.sql.live_rows import LIVE, LiveAttempt
from hopyard.stores.sql.marks import Stamp
from hopyard.stores.sql.tables import attempts, runs
from hopyard.stores.sql.usage_rows import held, keep

_SECOND = 1_000_000
_WRITE_ATTEMPT = Hot(
    update(attempts).where(attempts.c.id == bindparam("b_id"), attempts.c.phase == bindparam("b_phase"), LIVE)
)
_WRITE_RUN = Hot(update(runs).where(runs.c.id == bindparam("b_id"), runs.c.phase == bindparam("b_phase")))
# Ends that only something that ran can come to.
_RAN = frozenset({ExitKind.EXIT_CODE, ExitKind.SIGNAL, ExitKind.OUT_OF_MEMORY, ExitKind.TIME_LIMIT})


class OutOfStep(Exception):
    """The database does not hold what its picture says: somebody who keeps no clock has written to it."""


class Changes:
    """One write's changes of live attempts, at `now` (microseconds).
    The picture is changed at once, the rows by `finish`."""

    def __init__(self, conn: Connection, live: Live, stamp: Stamp, now: int) -> None:
        self._conn, self._live, self.stamp, self._now, self._at = conn, live, stamp, now, from_us(now)
        self._attempts: dict[str, dict[str, Any]] = {}
        self._runs: dict[str, dict[str, Any]] = {}
        self._used: dict[UsedKey, Used] = {}
        self._held: list[dict[str, Any]] = []
        self._took_s: dict[str, list[float]] = {}
        self._changed: list[RunId] = []
        self._ended: list[Ended] = []
        self._requeued: list[RunId] = []

    def make(self, found: LiveAttempt, after: After | None) -> None:
        """Carry out one change (None: there is none)."""
        if after is None:
            return
        values = self._attempts.setdefault(found.id, {"b_id": found.id, "b_phase": str(found.phase)})
        started_at = self._started_at(found, after)
        asked_at = self._now if after.asks_to_end(found.phase) else found.asked_at
        ended = after.exit is not None
        ended_at = self._ended_at(found, after, started_at)
        values |= {
            "phase": str(after.phase),
            "replicas": encode_replicas(after.replicas),
            "started_at": started_at,
            "asked_at": asked_at,
            "live": int(not ended),
            "ended_at": ended_at if ended else None,
            "exit": encode_exit(after.exit),
            "touched": self.stamp.now,
        }
        self.stamp.touch("attempts", visible=ended or after.phase is not found.phase)
        self._follow(found, after, started_at, ended_at)
        found.phase, found.replicas, found.started_at, found.asked_at, found.idle = (
            after.phase,
            after.replicas,
            started_at,
            asked_at,
            None,
        )
        self._live.changed(found.id, requeued=after.requeued)
        if ended:
            self._ended.append(Ended(found.run, found.id))
            amounts = self._live.amounts(found.id)
            self._held.append(
                held(
                    found.id,
                    found.run,
                    found.gang.queue,
                    amounts,
                    placed_at=found.placed_at,
                    ended_at=self._now,
                )
            )
            self._live.drop(found.id)

    def finish(self) -> Recorded:
        """Write it, and tell what was changed. Raises OutOfStep."""
        self._execute(_WRITE_ATTEMPT, self._attempts)
        self._execute(
            _WRITE_RUN, {run: values for run, values in self._runs.items() if "touched" not in values}
        )
        self._execute(_WRITE_RUN, {run: values for run, values in self._runs.items() if "touched" in values})
        keep(self._conn, self._held)
        known = self._live.durations
        durations = {key: (*known.get(key, ()), *seconds)[-KEPT:] for key, seconds in self._took_s.items()}
        if self._used:
            write_used(self._conn, self._live.used, self._used, clock=self.stamp.now)
        if durations:
            write_durations(self._conn, known, durations, clock=self.stamp.now)
        self._live.learn(self._used, durations)
        self.stamp.write()
        return Recorded(tuple(self._changed), tuple(self._ended), tuple(self._requeued))

    def _execute(self, statement: Hot, rows: dict[str, dict[str, Any]]) -> None:
        if statement.change(self._conn, list(rows.values())) != len(rows):
            raise OutOfStep

    def _follow(self, found: LiveAttempt, after: After, started_at: int | None, ended_at: int) -> None:
        """The run follows its attempt."""
        moves = after.run_phase is not found.run_phase
        if not moves and after.exit is None:
            return
        values = self._runs.setdefault(
            found.run,
            {"b_id": found.run, "b_phase": str(found.run_phase), "started_at": found.run_started_at},
        )
        values["phase"] = str(moved(found.run_phase, after.run_phase))
        if found.run_started_at is None and (after.phase is AttemptPhase.RUNNING or after.run_phase.final):
            found.run_started_at = values["started_at"] = started_at
        if after.exit is not None:
            self._end(found, after, started_at, ended_at, values)
        if moves:
            self._changed.append(found.run)
        found.run_phase = after.run_phase

    def _end(
        self, found: LiveAttempt, after: After, started_at: int | None, ended_at: int, values: dict[str, Any]
    ) -> None:
        """Its run waits again, or is over: a policy sees another run than before."""
        served_us = round(found.gang.served_s * _SECOND)
        if started_at is not None:
            served_us += max(ended_at - started_at, 0)
        final = after.run_phase.final
        values |= {
            "served_us": served_us,
            "losses": after.lost,
            "refusals": after.refused,
            "not_before": self._now + round(after.pause_s * _SECOND) if after.pause_s else None,
            "put_back": after.put_back,
            "preemptions": found.gang.preemptions + (after.setback is Setback.MADE_ROOM),
            "ended_at": ended_at if final else None,
            "exit": encode_exit(after.exit) if final else None,
            "touched": self.stamp.now,
        }
        self.stamp.touch("runs")
        self._count_use(found)
        if after.requeued:
            self._requeued.append(found.run)
        elif found.run_started_at is not None and tells_duration(
            after.run_phase, after.exit, served_us / _SECOND
        ):
            self._learn(found, served_us / _SECOND)

    def _count_use(self, found: LiveAttempt) -> None:
        """What it held from its placement until now is its user's past."""
        key, now = (found.gang.queue, found.gang.user), self._at
        share = dominant_share(self._live.amounts(found.id), self._live.totals)
        before = self._used.get(key) or self._live.used.get(key)
        held_s = (self._now - found.placed_at) / _SECOND
        self._used[key] = used_after(before, share, held_s, now, self._live.charges.tree.half_life_s)
        self.stamp.touch("learnt")

    def _learn(self, found: LiveAttempt, seconds: float) -> None:
        for key in history_keys(found.gang):
            self._took_s.setdefault(key, []).append(seconds)
        self.stamp.touch("learnt")

    def _started_at(self, found: LiveAttempt, after: After) -> int | None:
        if found.started_at is not None or found.phase is not AttemptPhase.STARTING:
            return found.started_at
        if after.phase is AttemptPhase.RUNNING:
            return self._told(after.began_at, since=found.placed_at)
        if after.exit is None or (after.began_at is None and after.exit.kind not in _RAN):
            return None
        # It ran and ended between two words of its replica: where the replica does not say when it began,
        # only its placement is known.
        return (
            found.placed_at if after.began_at is None else self._told(after.began_at, since=found.placed_at)
        )

    def _ended_at(self, found: LiveAttempt, after: After, started_at: int | None) -> int:
        """Where the news was late, since the server or its database was away, that is before now."""
        return self._told(after.ended_at, since=found.placed_at if started_at is None else started_at)

    def _told(self, at: datetime | None, *, since: int) -> int:
        """A time that a replica sent; now where it did not. Clocks of other machines may be wrong."""
        return self._now if at is None else min(max(to_us(at), since), self._now)

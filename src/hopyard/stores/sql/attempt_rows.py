"""Writes changes of live attempts and of their runs: collects them first, then writes them in few
statements."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, update

from hopyard.domain.amounts import dominant_share, past_usage_after
from hopyard.domain.attempt import AttemptPhase, ExitKind
from hopyard.domain.attempt_state import Transition
from hopyard.domain.duration_keys import MAX_DURATIONS, history_keys, is_usable_duration
from hopyard.domain.ids import RunId
from hopyard.domain.queue import PastUsage
from hopyard.domain.requeue_backoff import RequeueCause
from hopyard.domain.run import checked_transition
from hopyard.interfaces.cluster_store import EndedAttempt, RecordResult
from hopyard.stores.sql.codec import encode_exit, encode_replicas, from_us, to_us
from hopyard.stores.sql.history_rows import PastUsageKey, write_durations, write_past_usage
from hopyard.stores.sql.live_attempt_rows import IS_LIVE, LiveAttempt
from hopyard.stores.sql.raw_statements import RawStatement
from hopyard.stores.sql.tables import attempts, runs
from hopyard.stores.sql.usage import insert_usage, usage_row
from hopyard.stores.sql.versions import WriteStamp
from hopyard.stores.sql.writer_state import WriterState

_US_PER_S = 1_000_000
_UPDATE_ATTEMPT = RawStatement(
    update(attempts).where(
        attempts.c.id == bindparam("b_id"), attempts.c.phase == bindparam("b_phase"), IS_LIVE
    )
)
_UPDATE_RUN = RawStatement(
    update(runs).where(runs.c.id == bindparam("b_id"), runs.c.phase == bindparam("b_phase"))
)
# Exits that only a started script can have.
_WORK_EXIT_KINDS = frozenset(
    {ExitKind.EXIT_CODE, ExitKind.SIGNAL, ExitKind.OUT_OF_MEMORY, ExitKind.TIME_LIMIT}
)


class StateOutdated(Exception):
    """The database differs from the writer's state: a program that does not maintain the versions has written
    to it."""


class AttemptChanges:
    """The changes of live attempts in one write, at `now` (microseconds). The state changes at once, the rows
    in `write`."""

    def __init__(self, conn: Connection, state: WriterState, stamp: WriteStamp, now: int) -> None:
        self._conn, self._state, self.stamp, self._now, self._now_time = conn, state, stamp, now, from_us(now)
        self._attempts: dict[str, dict[str, Any]] = {}
        self._runs: dict[str, dict[str, Any]] = {}
        self._past_usage: dict[PastUsageKey, PastUsage] = {}
        self._usage_rows: list[dict[str, Any]] = []
        self._durations_s: dict[str, list[float]] = {}
        self._changed: list[RunId] = []
        self._ended: list[EndedAttempt] = []
        self._requeued: list[RunId] = []

    def apply(self, attempt: LiveAttempt, transition: Transition | None) -> None:
        """Applies one transition (None: no change)."""
        if transition is None:
            return
        values = self._attempts.setdefault(attempt.id, {"b_id": attempt.id, "b_phase": str(attempt.phase)})
        started_at = self._started_at(attempt, transition)
        requested_at = self._now if transition.requests_stop(attempt.phase) else attempt.preempt_requested_at
        ended = transition.exit is not None
        ended_at = self._ended_at(attempt, transition, started_at)
        values |= {
            "phase": str(transition.phase),
            "replicas": encode_replicas(transition.replicas),
            "started_at": started_at,
            "asked_at": requested_at,
            "live": int(not ended),
            "ended_at": ended_at if ended else None,
            "exit": encode_exit(transition.exit),
            "touched": self.stamp.now,
        }
        self.stamp.touch("attempts", visible=ended or transition.phase is not attempt.phase)
        self._update_run(attempt, transition, started_at, ended_at)
        attempt.phase = transition.phase
        attempt.replicas = transition.replicas
        attempt.started_at = started_at
        attempt.preempt_requested_at = requested_at
        attempt.last_unchanged_report = None
        self._state.mark_attempt_changed(attempt.id, requeued=transition.is_requeued)
        if ended:
            self._ended.append(EndedAttempt(attempt.run, attempt.id))
            amounts = self._state.amounts_of(attempt.id)
            self._usage_rows.append(
                usage_row(
                    attempt.id,
                    attempt.run,
                    attempt.gang.queue,
                    amounts,
                    placed_at=attempt.placed_at,
                    ended_at=self._now,
                )
            )
            self._state.remove_attempt(attempt.id)

    def write(self) -> RecordResult:
        """Writes the changes and returns them. Raises StateOutdated."""
        self._execute(_UPDATE_ATTEMPT, self._attempts)
        self._execute(
            _UPDATE_RUN, {run: values for run, values in self._runs.items() if "touched" not in values}
        )
        self._execute(_UPDATE_RUN, {run: values for run, values in self._runs.items() if "touched" in values})
        insert_usage(self._conn, self._usage_rows)
        existing = self._state.durations
        durations = {
            key: (*existing.get(key, ()), *seconds)[-MAX_DURATIONS:]
            for key, seconds in self._durations_s.items()
        }
        if self._past_usage:
            write_past_usage(self._conn, self._state.past_usage, self._past_usage, clock=self.stamp.now)
        if durations:
            write_durations(self._conn, existing, durations, clock=self.stamp.now)
        self._state.set_history(self._past_usage, durations)
        self.stamp.write()
        return RecordResult(tuple(self._changed), tuple(self._ended), tuple(self._requeued))

    def _execute(self, statement: RawStatement, rows: dict[str, dict[str, Any]]) -> None:
        if statement.execute_many(self._conn, list(rows.values())) != len(rows):
            raise StateOutdated

    def _update_run(
        self, attempt: LiveAttempt, after: Transition, started_at: int | None, ended_at: int
    ) -> None:
        """Updates the run after its attempt."""
        changes_phase = after.run_phase is not attempt.run_phase
        if not changes_phase and after.exit is None:
            return
        values = self._runs.setdefault(
            attempt.run,
            {"b_id": attempt.run, "b_phase": str(attempt.run_phase), "started_at": attempt.run_started_at},
        )
        values["phase"] = str(checked_transition(attempt.run_phase, after.run_phase))
        if attempt.run_started_at is None and (
            after.phase is AttemptPhase.RUNNING or after.run_phase.is_final
        ):
            attempt.run_started_at = values["started_at"] = started_at
        if after.exit is not None:
            self._end_attempt(attempt, after, started_at, ended_at, values)
        if changes_phase:
            self._changed.append(attempt.run)
        attempt.run_phase = after.run_phase

    def _end_attempt(
        self,
        attempt: LiveAttempt,
        after: Transition,
        started_at: int | None,
        ended_at: int,
        values: dict[str, Any],
    ) -> None:
        """Requeues or ends the run, which changes the gang that a policy sees."""
        served_us = round(attempt.gang.served_s * _US_PER_S)
        if started_at is not None:
            served_us += max(ended_at - started_at, 0)
        final = after.run_phase.is_final
        values |= {
            "served_us": served_us,
            "losses": after.losses,
            "refusals": after.refusals,
            "not_before": self._now + round(after.backoff_s * _US_PER_S) if after.backoff_s else None,
            "put_back": after.requeue_reason,
            "paused_at": None,  # the script of the next attempt pauses by itself
            "preemptions": attempt.gang.preemptions + (after.requeue_cause is RequeueCause.PREEMPTED),
            "ended_at": ended_at if final else None,
            "exit": encode_exit(after.exit) if final else None,
            "touched": self.stamp.now,
        }
        self.stamp.touch("runs")
        self._count_usage(attempt)
        if after.is_requeued:
            self._requeued.append(attempt.run)
        elif attempt.run_started_at is not None and is_usable_duration(
            after.run_phase, after.exit, served_us / _US_PER_S
        ):
            self._record_duration(attempt, served_us / _US_PER_S)

    def _count_usage(self, attempt: LiveAttempt) -> None:
        """Adds the resources that the attempt held from placement until now to its user's past usage."""
        key, now = (attempt.gang.queue, attempt.gang.user), self._now_time
        share = dominant_share(self._state.amounts_of(attempt.id), self._state.totals)
        before = self._past_usage.get(key) or self._state.past_usage.get(key)
        held_s = (self._now - attempt.placed_at) / _US_PER_S
        self._past_usage[key] = past_usage_after(
            before, share, held_s, now, self._state.quota_check.tree.half_life_s
        )
        self.stamp.touch("learnt")

    def _record_duration(self, attempt: LiveAttempt, seconds: float) -> None:
        for key in history_keys(attempt.gang):
            self._durations_s.setdefault(key, []).append(seconds)
        self.stamp.touch("learnt")

    def _started_at(self, attempt: LiveAttempt, after: Transition) -> int | None:
        if attempt.started_at is not None or attempt.phase is not AttemptPhase.STARTING:
            return attempt.started_at
        if after.phase is AttemptPhase.RUNNING:
            return self._checked_time(after.began_at, since=attempt.placed_at)
        if after.exit is None or (after.began_at is None and after.exit.kind not in _WORK_EXIT_KINDS):
            return None
        # It ran and ended between two reports of its replica. If the replica did not report its start, only
        # its placement is known.
        return (
            attempt.placed_at
            if after.began_at is None
            else self._checked_time(after.began_at, since=attempt.placed_at)
        )

    def _ended_at(self, attempt: LiveAttempt, after: Transition, started_at: int | None) -> int:
        """Returns the end of the attempt, which is before now if the report was late, for example after an
        outage."""
        return self._checked_time(
            after.ended_at, since=attempt.placed_at if started_at is None else started_at
        )

    def _checked_time(self, reported_at: datetime | None, *, since: int) -> int:
        """Returns the time that a replica reported, or now without a report. Clocks of other machines may be
        wrong, so it is limited."""
        return self._now if reported_at is None else min(max(to_us(reported_at), since), self._now)

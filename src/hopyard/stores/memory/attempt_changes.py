"""The changes that a report of an attempt causes in the attempt, its run, and the recorded durations."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from hopyard.domain.amounts import dominant_share, past_usage_after
from hopyard.domain.attempt import AttemptPhase, ExitKind
from hopyard.domain.attempt_state import AttemptState, Transition
from hopyard.domain.duration_keys import MAX_DURATIONS, history_keys, is_usable_duration
from hopyard.domain.ids import RunId
from hopyard.domain.requeue_backoff import RequeueCause
from hopyard.interfaces.cluster_store import EndedAttempt, RecordResult
from hopyard.stores.memory.rows import AttemptRow, RunRow
from hopyard.stores.memory.state import MemoryState

# Exits that only a started script can have.
_WORK_EXIT_KINDS = frozenset(
    {ExitKind.EXIT_CODE, ExitKind.SIGNAL, ExitKind.OUT_OF_MEMORY, ExitKind.TIME_LIMIT}
)


class AttemptChanges:
    """Collects the changes made at `now` for the result."""

    def __init__(self, state: MemoryState, now: datetime) -> None:
        self._state, self._now = state, now
        self._changed: list[RunId] = []
        self._ended: list[EndedAttempt] = []
        self._requeued: list[RunId] = []
        self.changes_snapshot = False

    def attempt_state(self, run: RunRow) -> AttemptState:
        """Returns the state of the run's newest attempt."""
        attempt = run.attempts[-1]
        return AttemptState(
            attempt=attempt.id,
            phase=attempt.phase,
            replicas=attempt.replicas,
            size=len(attempt.placement.assignments),
            losses=run.losses,
            refusals=run.refusals,
            run_phase=run.phase,
            stop_requested=run.stop_requested,
            max_attempts=run.spec.max_attempts,
            preempted=attempt.preempted_for is not None,
            optional=attempt.placement.gang.optional_ranks(),
            services=attempt.placement.gang.service_ranks(),
        )

    def apply(self, run: RunRow, transition: Transition | None) -> None:
        """Applies one transition of the run's newest attempt (None: no change)."""
        if transition is None:
            return
        attempt = run.attempts[-1]
        attempt.replicas = transition.replicas
        if transition.exit is None and transition.phase is attempt.phase:
            return
        started_at = self._started_at(attempt, transition)
        if transition.requests_stop(attempt.phase):
            attempt.preempt_requested_at = self._now
        attempt.phase, attempt.started_at = transition.phase, started_at
        if transition.exit is None:
            self._state.add_running(attempt)
            self.changes_snapshot = True
        else:
            attempt.ended_at, attempt.exit = (
                self._checked_time(transition.ended_at, since=started_at or attempt.placed_at),
                transition.exit,
            )
            self._state.remove_running(attempt, self._now)
            self._count_usage(run, attempt)
            self._ended.append(EndedAttempt(run.id, attempt.id))
        self._update_run(run, transition, started_at)

    def to_result(self) -> RecordResult:
        if self._ended or self.changes_snapshot:
            self._state.mark_changed()
        return RecordResult(tuple(self._changed), tuple(self._ended), tuple(self._requeued))

    def _update_run(self, run: RunRow, after: Transition, started_at: datetime | None) -> None:
        """Updates the run after its attempt."""
        before = run.phase
        run.set_phase(after.run_phase)
        if run.started_at is None and (after.phase is AttemptPhase.RUNNING or run.phase.is_final):
            run.started_at = started_at
        if run.phase is not before:
            self._changed.append(run.id)
        if after.exit is None:
            return
        run.losses, run.refusals = after.losses, after.refusals
        run.paused_at = None  # the script of the next attempt pauses by itself
        run.gang = replace(
            run.gang,
            preemptions=run.gang.preemptions + (after.requeue_cause is RequeueCause.PREEMPTED),
            not_before=self._now + timedelta(seconds=after.backoff_s) if after.backoff_s else None,
            requeue_reason=after.requeue_reason,
        )
        if after.is_requeued:
            self._requeued.append(run.id)
            if run.held_by is None:
                self._state.add_pending(run.gang)
        else:
            run.ended_at, run.exit = run.attempts[-1].ended_at, after.exit
            self._record_duration(run)

    def _started_at(self, attempt: AttemptRow, after: Transition) -> datetime | None:
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

    def _checked_time(self, reported_at: datetime | None, *, since: datetime) -> datetime:
        """Returns the time that a replica reported, or now without a report. Clocks of other machines may be
        wrong, so it is limited."""
        return self._now if reported_at is None else min(max(reported_at, since), self._now)

    def _count_usage(self, run: RunRow, attempt: AttemptRow) -> None:
        """Adds the time that the run was served, and the resources that the attempt held from placement until
        now, to its user's past usage."""
        state, gang = self._state, run.gang
        if attempt.started_at is not None:
            ran_s = ((attempt.ended_at or self._now) - attempt.started_at).total_seconds()
            run.gang = replace(gang, served_s=gang.served_s + max(ran_s, 0.0))
        key = (gang.queue, gang.user)
        share, held_s = (
            dominant_share(attempt.amounts, state.cached_totals.get()),
            (self._now - attempt.placed_at).total_seconds(),
        )
        state.past_usage[key] = past_usage_after(
            state.past_usage.get(key), share, held_s, self._now, state.tree.half_life_s
        )
        state.cached_past_usage.invalidate()

    def _record_duration(self, run: RunRow) -> None:
        """Stores the duration of the run, to predict similar runs."""
        if run.started_at is None or not is_usable_duration(run.phase, run.exit, run.gang.served_s):
            return
        durations = self._state.durations
        for key in history_keys(run.gang):
            durations[key] = (*durations.get(key, ())[-(MAX_DURATIONS - 1) :], run.gang.served_s)
        self._state.cached_durations.invalidate()

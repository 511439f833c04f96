"""What news of an attempt changes of it, of its run, and of what is learnt from it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from hopyard.domain.amounts import dominant_share, used_after
from hopyard.domain.attempt import AttemptPhase, ExitKind
from hopyard.domain.attempt_news import After, Before
from hopyard.domain.durations import KEPT, history_keys, tells_duration
from hopyard.domain.ids import RunId
from hopyard.domain.setbacks import Setback
from hopyard.interfaces.cluster_store import Ended, Recorded
from hopyard.stores.memory.rows import AttemptRow, RunRow
from hopyard.stores.memory.state import State

# Ends that only something that ran can come to.
_RAN = frozenset({ExitKind.EXIT_CODE, ExitKind.SIGNAL, ExitKind.OUT_OF_MEMORY, ExitKind.TIME_LIMIT})


class Changes:
    """Gathers what to tell of the changes made at `now`."""

    def __init__(self, state: State, now: datetime) -> None:
        self._state, self._now = state, now
        self._changed: list[RunId] = []
        self._ended: list[Ended] = []
        self._requeued: list[RunId] = []
        self.seen_by_policy = False

    def before(self, run: RunRow) -> Before:
        """The run's newest attempt as it stands."""
        attempt = run.attempts[-1]
        return Before(
            attempt=attempt.id,
            phase=attempt.phase,
            replicas=attempt.replicas,
            size=len(attempt.placement.assignments),
            lost=run.losses,
            refused=run.refusals,
            run_phase=run.phase,
            stop_requested=run.stop_requested,
            max_attempts=run.spec.max_attempts,
            preempted=attempt.preempted_for is not None,
            optional=attempt.placement.gang.optional_ranks(),
        )

    def make(self, run: RunRow, after: After | None) -> None:
        """Carry out one change of the run's newest attempt (None: there is none)."""
        if after is None:
            return
        attempt = run.attempts[-1]
        attempt.replicas = after.replicas
        if after.exit is None and after.phase is attempt.phase:
            return
        started_at = self._started_at(attempt, after)
        if after.asks_to_end(attempt.phase):
            attempt.asked_at = self._now
        attempt.phase, attempt.started_at = after.phase, started_at
        if after.exit is None:
            self._state.show_running(attempt)
            self.seen_by_policy = True
        else:
            attempt.ended_at, attempt.exit = (
                self._told(after.ended_at, since=started_at or attempt.placed_at),
                after.exit,
            )
            self._state.hide_running(attempt, self._now)
            self._account(run, attempt)
            self._ended.append(Ended(run.id, attempt.id))
        self._follow(run, after, started_at)

    def finish(self) -> Recorded:
        if self._ended or self.seen_by_policy:
            self._state.changed()
        return Recorded(tuple(self._changed), tuple(self._ended), tuple(self._requeued))

    def _follow(self, run: RunRow, after: After, started_at: datetime | None) -> None:
        """The run follows its attempt."""
        before = run.phase
        run.move(after.run_phase)
        if run.started_at is None and (after.phase is AttemptPhase.RUNNING or run.phase.final):
            run.started_at = started_at
        if run.phase is not before:
            self._changed.append(run.id)
        if after.exit is None:
            return
        run.losses, run.refusals = after.lost, after.refused
        run.gang = replace(
            run.gang,
            preemptions=run.gang.preemptions + (after.setback is Setback.MADE_ROOM),
            not_before=self._now + timedelta(seconds=after.pause_s) if after.pause_s else None,
            put_back=after.put_back,
        )
        if after.requeued:
            self._requeued.append(run.id)
            self._state.wait(run.gang)
        else:
            run.ended_at, run.exit = run.attempts[-1].ended_at, after.exit
            self._learn(run)

    def _started_at(self, attempt: AttemptRow, after: After) -> datetime | None:
        if attempt.started_at is not None or attempt.phase is not AttemptPhase.STARTING:
            return attempt.started_at
        if after.phase is AttemptPhase.RUNNING:
            return self._told(after.began_at, since=attempt.placed_at)
        if after.exit is None or (after.began_at is None and after.exit.kind not in _RAN):
            return None
        # It ran and ended between two words of its replica: where the replica does not say when it began,
        # only its placement is known.
        return (
            attempt.placed_at
            if after.began_at is None
            else self._told(after.began_at, since=attempt.placed_at)
        )

    def _told(self, at: datetime | None, *, since: datetime) -> datetime:
        """A time that a replica sent; now where it did not. Clocks of other machines may be wrong."""
        return self._now if at is None else min(max(at, since), self._now)

    def _account(self, run: RunRow, attempt: AttemptRow) -> None:
        """How long it was served, and what it held from its placement until now, are its user's past."""
        state, gang = self._state, run.gang
        if attempt.started_at is not None:
            ran_s = ((attempt.ended_at or self._now) - attempt.started_at).total_seconds()
            run.gang = replace(gang, served_s=gang.served_s + max(ran_s, 0.0))
        key = (gang.queue, gang.user)
        share, held_s = (
            dominant_share(attempt.amounts, state.totals.get()),
            (self._now - attempt.placed_at).total_seconds(),
        )
        state.used[key] = used_after(state.used.get(key), share, held_s, self._now, state.tree.half_life_s)
        state.seen_used.stale()

    def _learn(self, run: RunRow) -> None:
        """How long it took, for the next one alike."""
        if run.started_at is None or not tells_duration(run.phase, run.exit, run.gang.served_s):
            return
        durations = self._state.durations
        for key in history_keys(run.gang):
            durations[key] = (*durations.get(key, ())[-(KEPT - 1) :], run.gang.served_s)
        self._state.seen_durations.stale()

"""A live attempt as input of its transitions, and a transition: the changes to store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from hopyard.domain.attempt import AttemptPhase, Exit, ReplicaStatus
from hopyard.domain.ids import AttemptId
from hopyard.domain.requeue_backoff import RequeueCause, ordinal
from hopyard.domain.run import RunPhase


@dataclass(frozen=True, slots=True)
class AttemptState:
    """A live attempt, the newest of its run, and the data of the run that decide the next phase.

    losses: attempts in a row that were lost before it without progress of the run. refusals: likewise,
    attempts that their node could not start. preempted: its preemption was requested. optional, services: as
    in `gang_state`.
    """

    attempt: AttemptId
    phase: AttemptPhase
    replicas: tuple[ReplicaStatus, ...]
    size: int
    losses: int
    run_phase: RunPhase
    stop_requested: bool
    max_attempts: int
    preempted: bool = False
    optional: frozenset[int] = frozenset()
    services: frozenset[int] = frozenset()
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class Transition:
    """The changes to store. `exit` is set exactly when the attempt ended; `is_requeued` if its run waits
    again.

    The run waits because of `requeue_cause`, for at least `backoff_s`. losses, refusals: as in
    `AttemptState`, for the next attempt.
    """

    phase: AttemptPhase
    replicas: tuple[ReplicaStatus, ...]
    run_phase: RunPhase
    exit: Exit | None = None
    requeue_cause: RequeueCause | None = None
    backoff_s: float = 0.0
    losses: int = 0
    refusals: int = 0

    @property
    def began_at(self) -> datetime | None:
        """The time when the scripts of all replicas had started; None if a replica did not report it."""
        return _latest([replica.began_at for replica in self.replicas])

    @property
    def ended_at(self) -> datetime | None:
        """The time when the scripts of all replicas had ended; None if a replica did not report it. Reports
        may arrive much later."""
        return None if self.exit is None else _latest([replica.ended_at for replica in self.replicas])

    @property
    def requeue_reason(self) -> str:
        """The reason why its run waits for `backoff_s`, with the count of retries in a row; "" if it need not
        wait."""
        if self.exit is None or not self.backoff_s:
            return ""
        count = self.refusals or self.losses
        return self.exit.reason + (f" (the {ordinal(count)} time in a row)" if count > 1 else "")

    @property
    def is_requeued(self) -> bool:
        return self.run_phase is RunPhase.QUEUED

    def requests_stop(self, before: AttemptPhase) -> bool:
        """Returns whether this change requests the stop of the attempt, which had this phase before."""
        return self.phase is AttemptPhase.STOPPING and before is not AttemptPhase.STOPPING


def _latest(times: Sequence[datetime | None]) -> datetime | None:
    reported = [time for time in times if time is not None]
    return max(reported) if reported and len(reported) == len(times) else None

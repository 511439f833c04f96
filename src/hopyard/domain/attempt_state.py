"""A live attempt as its transitions see it, and a transition: what to write."""

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
    """A live attempt, the newest of its run, and what of the run decides its fate.

    losses: how many attempts in a row were lost before it, since the run got any further. refusals: the same
    of attempts that its node could not start. preempted: it was asked to make room. optional: ranks that are
    not essential.
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
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class Transition:
    """What to write. `exit` is set exactly when the attempt is over; `is_requeued` when its run waits again,
    after `requeue_cause` and for `backoff_s` at least. losses, refusals: as of `AttemptState`, for the next
    attempt."""

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
        """When the scripts of all replicas had begun; None where a replica did not say."""
        return _latest([one.began_at for one in self.replicas])

    @property
    def ended_at(self) -> datetime | None:
        """When the scripts of all replicas had ended, which may be long before the news of it; None where a
        replica did not say."""
        return None if self.exit is None else _latest([one.ended_at for one in self.replicas])

    @property
    def requeue_reason(self) -> str:
        """Why its run waits for `pause_s`, and for which time in a row; "" where it need not."""
        if self.exit is None or not self.backoff_s:
            return ""
        times = self.refusals or self.losses
        return self.exit.reason + (f" (the {ordinal(times)} time in a row)" if times > 1 else "")

    @property
    def is_requeued(self) -> bool:
        return self.run_phase is RunPhase.QUEUED

    def requests_stop(self, before: AttemptPhase) -> bool:
        """Whether it is by this change that the attempt, in this phase before, is asked to end."""
        return self.phase is AttemptPhase.STOPPING and before is not AttemptPhase.STOPPING


def _latest(times: Sequence[datetime | None]) -> datetime | None:
    known = [at for at in times if at is not None]
    return max(known) if known and len(known) == len(times) else None

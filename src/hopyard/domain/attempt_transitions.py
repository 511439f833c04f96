"""Transitions of an attempt and its run after an observation. Pure: rows in, changes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum

from hopyard.domain.attempt import (
    AttemptPhase,
    AttemptStatus,
    Exit,
    ExitKind,
    ReplicaPhase,
    ReplicaStatus,
    gang_state,
)
from hopyard.domain.ids import AttemptId
from hopyard.domain.requeue_backoff import RequeueCause, backoff_s, ordinal
from hopyard.domain.run import RunPhase

PROCESSES_LOST = "the engine no longer reports its processes"
_PEER_LOSS_KINDS = (ExitKind.EXIT_CODE, ExitKind.SIGNAL, ExitKind.PEER_FAILED)
CANCELLED_IN_QUEUE = Exit(ExitKind.STOPPED, 130, "stopped while waiting")


class _PhaseOrder(IntEnum):
    PREPARING = 0
    RUNNING = 1
    EXITED = 2


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


def lost_exit(reason: str) -> Exit:
    """Returns the exit of a lost attempt, whose outcome is unknown."""
    return Exit(ExitKind.LOST, 1, reason)


def apply_status(before: AttemptState, status: AttemptStatus) -> Transition | None:
    """The attempt after `status`; None when it changes nothing."""
    replicas = merge_statuses(before.replicas, status.replicas, size=before.size)
    told, exit = gang_state(
        AttemptStatus(before.attempt, replicas), size=before.size, optional=before.optional
    )
    if not told.is_live:
        return end_attempt(before, told, exit or lost_exit(PROCESSES_LOST), replicas=replicas)
    phase = _advance_phase(before.phase, told)
    if phase is before.phase:
        return None if replicas == before.replicas else Transition(phase, replicas, before.run_phase)
    return Transition(phase, replicas, RunPhase(phase.value))


def end_attempt(
    before: AttemptState,
    phase: AttemptPhase,
    exit: Exit,
    *,
    replicas: tuple[ReplicaStatus, ...] | None = None,
) -> Transition:
    """The attempt is over: what becomes of its run."""
    known = before.replicas if replicas is None else replicas
    left = _preempted_exit(before, phase, exit, known)
    if left is not None:
        fate = RunPhase.CANCELLED if before.stop_requested else RunPhase.QUEUED
        ended = AttemptPhase.STOPPED if phase is AttemptPhase.FAILED else phase
        return Transition(
            ended,
            known,
            fate,
            left,
            RequeueCause.PREEMPTED if fate is RunPhase.QUEUED else None,
            losses=before.losses,
        )
    if phase is AttemptPhase.SUCCEEDED:
        return Transition(phase, known, RunPhase.SUCCEEDED, exit)
    if exit.kind is ExitKind.NODE_FAULT and not before.stop_requested:
        times = before.refusals + 1
        pause = backoff_s(RequeueCause.NODE_FAULT, times)
        return Transition(
            phase, known, RunPhase.QUEUED, exit, RequeueCause.NODE_FAULT, pause, before.losses, times
        )
    if phase is AttemptPhase.FAILED and exit.kind is not ExitKind.NODE_FAULT:
        return Transition(phase, known, RunPhase.FAILED, exit)
    if before.stop_requested:
        return Transition(phase, known, RunPhase.CANCELLED, exit)
    # Lost, or stopped though no user asked (its machine is going down): not the script's doing, so it is
    # tried again.
    times = before.losses + 1
    if times >= before.max_attempts:
        return Transition(phase, known, RunPhase.FAILED, _max_attempts_exit(exit, times))
    return Transition(
        phase, known, RunPhase.QUEUED, exit, RequeueCause.LOST, backoff_s(RequeueCause.LOST, times), times
    )


def _max_attempts_exit(exit: Exit, losses: int) -> Exit:
    """The end of a run that loses its attempts, with how often that was."""
    if losses == 1:
        return exit
    return replace(
        exit,
        reason=(
            f"{exit.reason}; no further retry after the {ordinal(losses)} loss in a row without a "
            "newer checkpoint"
        ),
    )


def fail_launch(before: AttemptState, reason: str, kind: ExitKind) -> Transition:
    """It could not be started. kind: NODE_FAULT, PREPARE_FAILED where that is the run's own fault, or
    LOST."""
    phase = AttemptPhase.LOST if kind is ExitKind.LOST else AttemptPhase.FAILED
    return end_attempt(before, phase, Exit(kind, 125 if kind is ExitKind.PREPARE_FAILED else 1, reason))


def _preempted_exit(
    before: AttemptState, phase: AttemptPhase, exit: Exit, replicas: tuple[ReplicaStatus, ...]
) -> Exit | None:
    """Its exit when it ended because it made room; None when it ended otherwise.

    Replicas that are asked to leave do not all leave at once, and whoever loses its peers ends with an error:
    where one says that it was preempted, the attempt was.
    """
    if exit.kind is ExitKind.PREEMPTED or (
        before.preempted and phase in (AttemptPhase.STOPPED, AttemptPhase.LOST)
    ):
        return exit
    if before.preempted and phase is AttemptPhase.FAILED and exit.kind in _PEER_LOSS_KINDS:
        return next(
            (one.exit for one in replicas if one.exit is not None and one.exit.kind is ExitKind.PREEMPTED),
            None,
        )
    return None


def request_stop(before: AttemptState) -> Transition:
    """Somebody wants it to end."""
    return Transition(AttemptPhase.STOPPING, before.replicas, RunPhase.STOPPING)


def merge_statuses(
    statuses: tuple[ReplicaStatus, ...], update: tuple[ReplicaStatus, ...], *, size: int
) -> tuple[ReplicaStatus, ...]:
    """What each replica said last, by rank. One never goes back: an exit stands, and old news of a run-up is
    dropped.

    (An engine may still call a replica running that has told its exit itself.)
    """
    latest = {status.rank: status for status in statuses}
    for status in update:
        old = latest.get(status.rank)
        if not 0 <= status.rank < size or (old is not None and _phase_order(status) < _phase_order(old)):
            continue
        if old is None or old.phase is not ReplicaPhase.EXITED:
            latest[status.rank] = status
    return tuple(latest[rank] for rank in sorted(latest))


def _phase_order(status: ReplicaStatus) -> _PhaseOrder:
    return _PhaseOrder[status.phase.name]


def _advance_phase(current: AttemptPhase, reported: AttemptPhase) -> AttemptPhase:
    """A live attempt goes starting → running → stopping and never back."""
    order = (AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.STOPPING)
    return max(current, reported, key=order.index)

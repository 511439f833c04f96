"""The phase of a run after the end of its attempt: final, or back in the queue. Pure."""

from __future__ import annotations

from dataclasses import replace

from hopyard.domain.attempt import AttemptPhase, Exit, ExitKind, ReplicaStatus
from hopyard.domain.attempt_state import AttemptState, Transition
from hopyard.domain.requeue_backoff import RequeueCause, backoff_s, ordinal
from hopyard.domain.run import RunPhase

PROCESSES_LOST = "the engine no longer reports its processes"
_PEER_LOSS_KINDS = (ExitKind.EXIT_CODE, ExitKind.SIGNAL, ExitKind.PEER_FAILED)


def lost_exit(reason: str) -> Exit:
    """Returns the exit of a lost attempt, whose outcome is unknown."""
    return Exit(ExitKind.LOST, 1, reason)


def lose_attempt(before: AttemptState, reason: str) -> Transition:
    """Returns the transition to LOST: the outcome of the attempt is unknown."""
    return end_attempt(before, AttemptPhase.LOST, lost_exit(reason))


def end_attempt(
    before: AttemptState,
    phase: AttemptPhase,
    exit: Exit,
    *,
    replicas: tuple[ReplicaStatus, ...] | None = None,
) -> Transition:
    """Returns the end of an attempt in `phase`: its run ends with `exit`, or goes back to the queue."""
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

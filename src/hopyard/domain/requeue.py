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
    final_replicas = before.replicas if replicas is None else replicas
    preempted_exit = _preempted_exit(before, phase, exit, final_replicas)
    if preempted_exit is not None:
        next_phase = RunPhase.CANCELLED if before.stop_requested else RunPhase.QUEUED
        ended_phase = AttemptPhase.STOPPED if phase is AttemptPhase.FAILED else phase
        return Transition(
            ended_phase,
            final_replicas,
            next_phase,
            preempted_exit,
            RequeueCause.PREEMPTED if next_phase is RunPhase.QUEUED else None,
            losses=before.losses,
        )
    if phase is AttemptPhase.SUCCEEDED:
        return Transition(phase, final_replicas, RunPhase.SUCCEEDED, exit)
    if exit.kind is ExitKind.NODE_FAULT and not before.stop_requested:
        count = before.refusals + 1
        pause = backoff_s(RequeueCause.NODE_FAULT, count)
        return Transition(
            phase, final_replicas, RunPhase.QUEUED, exit, RequeueCause.NODE_FAULT, pause, before.losses, count
        )
    if phase is AttemptPhase.FAILED and exit.kind is not ExitKind.NODE_FAULT:
        return Transition(phase, final_replicas, RunPhase.FAILED, exit)
    if before.stop_requested:
        return Transition(phase, final_replicas, RunPhase.CANCELLED, exit)
    # Lost, or stopped although no user requested it (its machine shuts down): not the fault of the script, so
    # the run is retried.
    count = before.losses + 1
    if count >= before.max_attempts:
        return Transition(phase, final_replicas, RunPhase.FAILED, _max_attempts_exit(exit, count))
    return Transition(
        phase,
        final_replicas,
        RunPhase.QUEUED,
        exit,
        RequeueCause.LOST,
        backoff_s(RequeueCause.LOST, count),
        count,
    )


def _max_attempts_exit(exit: Exit, losses: int) -> Exit:
    """Returns the exit of a run that lost its last allowed attempt, with the number of losses."""
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
    """Returns the transition of an attempt that could not be started. kind: NODE_FAULT, PREPARE_FAILED if it
    is the fault of the run, or LOST."""
    phase = AttemptPhase.LOST if kind is ExitKind.LOST else AttemptPhase.FAILED
    return end_attempt(before, phase, Exit(kind, 125 if kind is ExitKind.PREPARE_FAILED else 1, reason))


def _preempted_exit(
    before: AttemptState, phase: AttemptPhase, exit: Exit, replicas: tuple[ReplicaStatus, ...]
) -> Exit | None:
    """Returns the exit of an attempt that was preempted; None if it ended otherwise.

    Replicas do not all stop at once, and a replica that loses its peers ends with an error. If one replica
    reports a preemption, the attempt was preempted.
    """
    if exit.kind is ExitKind.PREEMPTED or (
        before.preempted and phase in (AttemptPhase.STOPPED, AttemptPhase.LOST)
    ):
        return exit
    if before.preempted and phase is AttemptPhase.FAILED and exit.kind in _PEER_LOSS_KINDS:
        return next(
            (
                replica.exit
                for replica in replicas
                if replica.exit is not None and replica.exit.kind is ExitKind.PREEMPTED
            ),
            None,
        )
    return None

"""Transitions of an attempt and its run after an observation. Pure: takes rows and returns changes."""

from __future__ import annotations

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
from hopyard.domain.attempt_state import AttemptState, Transition
from hopyard.domain.requeue import PROCESSES_LOST, end_attempt, lost_exit
from hopyard.domain.run import RunPhase

CANCELLED_IN_QUEUE = Exit(ExitKind.STOPPED, 130, "stopped while waiting")


class _PhaseOrder(IntEnum):
    PREPARING = 0
    RUNNING = 1
    EXITED = 2


def apply_status(before: AttemptState, status: AttemptStatus) -> Transition | None:
    """Returns the transition to `status`; None if it changes nothing."""
    replicas = merge_statuses(before.replicas, status.replicas, size=before.size)
    reported_phase, exit = gang_state(
        AttemptStatus(before.attempt, replicas),
        size=before.size,
        optional=before.optional,
        services=before.services,
    )
    if not reported_phase.is_live:
        return end_attempt(before, reported_phase, exit or lost_exit(PROCESSES_LOST), replicas=replicas)
    phase = _advance_phase(before.phase, reported_phase)
    if phase is before.phase:
        return None if replicas == before.replicas else Transition(phase, replicas, before.run_phase)
    return Transition(phase, replicas, RunPhase(phase.value))


def request_stop(before: AttemptState) -> Transition:
    """Returns the transition for a requested stop."""
    return Transition(AttemptPhase.STOPPING, before.replicas, RunPhase.STOPPING)


def merge_statuses(
    statuses: tuple[ReplicaStatus, ...], update: tuple[ReplicaStatus, ...], *, size: int
) -> tuple[ReplicaStatus, ...]:
    """Returns the latest status of each replica, by rank. Phases never go back: an exit is final, and late
    reports of earlier phases are dropped.

    An engine may report a replica as running after the replica reported its exit itself.
    """
    latest = {status.rank: status for status in statuses}
    for status in update:
        current = latest.get(status.rank)
        if not 0 <= status.rank < size or (
            current is not None and _phase_order(status) < _phase_order(current)
        ):
            continue
        if current is None or current.phase is not ReplicaPhase.EXITED:
            latest[status.rank] = status
    return tuple(latest[rank] for rank in sorted(latest))


def _phase_order(status: ReplicaStatus) -> _PhaseOrder:
    return _PhaseOrder[status.phase.name]


def _advance_phase(current: AttemptPhase, reported: AttemptPhase) -> AttemptPhase:
    """Returns the later phase: a live attempt goes starting → running → stopping and never back."""
    order = (AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.STOPPING)
    return max(current, reported, key=order.index)

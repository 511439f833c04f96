"""What news of an attempt means for it and its run. Pure: rows in, changes out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from hopyard.domain.attempt import AttemptPhase, AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus, summarise
from hopyard.domain.ids import AttemptId
from hopyard.domain.run import RunPhase

VANISHED = "the engine no longer finds its processes"
_OF_LOST_PEERS = (ExitKind.EXIT_CODE, ExitKind.SIGNAL, ExitKind.PEER_FAILED)
CANCELLED_IN_QUEUE = Exit(ExitKind.STOPPED, 130, "stopped while it waited")


class _Order(IntEnum):
    PREPARING = 0
    RUNNING = 1
    EXITED = 2


@dataclass(frozen=True, slots=True)
class Before:
    """A live attempt, the newest of its run, and what of the run decides its fate.

    lost: how many attempts before it were lost. preempted: it was asked to make room. optional: ranks that are not essential.
    """

    attempt: AttemptId
    phase: AttemptPhase
    replicas: tuple[ReplicaStatus, ...]
    size: int
    lost: int
    run_phase: RunPhase
    stop_requested: bool
    max_attempts: int
    preempted: bool = False
    optional: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class After:
    """What to write. `exit` is set exactly when the attempt is over; `requeued` when its run waits again. lost: it counts as
    one of the attempts that a run may lose."""

    phase: AttemptPhase
    replicas: tuple[ReplicaStatus, ...]
    run_phase: RunPhase
    exit: Exit | None = None
    lost: bool = False

    @property
    def requeued(self) -> bool:
        return self.run_phase is RunPhase.QUEUED

    def asks_to_end(self, before: AttemptPhase) -> bool:
        """Whether it is by this change that the attempt, in this phase before, is asked to end."""
        return self.phase is AttemptPhase.STOPPING and before is not AttemptPhase.STOPPING


def lost(reason: str) -> Exit:
    """The end of an attempt of which nobody knows how it went."""
    return Exit(ExitKind.LOST, 1, reason)


def take_in(before: Before, news: AttemptStatus) -> After | None:
    """The attempt after `news`; None when it changes nothing."""
    replicas = merge(before.replicas, news.replicas, size=before.size)
    told, exit = summarise(AttemptStatus(before.attempt, replicas), size=before.size, optional=before.optional)
    if not told.live:
        return end(before, told, exit or lost(VANISHED), replicas=replicas)
    phase = _onward(before.phase, told)
    if phase is before.phase:
        return None if replicas == before.replicas else After(phase, replicas, before.run_phase)
    return After(phase, replicas, RunPhase(phase.value))


def end(before: Before, phase: AttemptPhase, exit: Exit, *, replicas: tuple[ReplicaStatus, ...] | None = None) -> After:
    """The attempt is over: what becomes of its run."""
    known = before.replicas if replicas is None else replicas
    left = _made_room(before, phase, exit, known)
    if left is not None:
        fate = RunPhase.CANCELLED if before.stop_requested else RunPhase.QUEUED
        return After(AttemptPhase.STOPPED if phase is AttemptPhase.FAILED else phase, known, fate, left)
    fate = _fate(before, phase)
    return After(phase, known, fate, exit, lost=fate is RunPhase.QUEUED)


def _made_room(before: Before, phase: AttemptPhase, exit: Exit, replicas: tuple[ReplicaStatus, ...]) -> Exit | None:
    """Its exit when it ended because it made room; None when it ended otherwise.

    Replicas that are asked to leave do not all leave at once, and whoever loses its peers ends with an error: where one
    says that it was preempted, the attempt was.
    """
    if exit.kind is ExitKind.PREEMPTED or (before.preempted and phase in (AttemptPhase.STOPPED, AttemptPhase.LOST)):
        return exit
    if before.preempted and phase is AttemptPhase.FAILED and exit.kind in _OF_LOST_PEERS:
        return next((one.exit for one in replicas if one.exit is not None and one.exit.kind is ExitKind.PREEMPTED), None)
    return None


def stop(before: Before) -> After:
    """Somebody wants it to end."""
    return After(AttemptPhase.STOPPING, before.replicas, RunPhase.STOPPING)


def merge(known: tuple[ReplicaStatus, ...], news: tuple[ReplicaStatus, ...], *, size: int) -> tuple[ReplicaStatus, ...]:
    """What each replica said last, by rank. One never goes back: an exit stands, and old news of a run-up is dropped.

    (An engine may still call a replica running that has told its exit itself.)
    """
    latest = {status.rank: status for status in known}
    for status in news:
        old = latest.get(status.rank)
        if not 0 <= status.rank < size or (old is not None and _order(status) < _order(old)):
            continue
        if old is None or old.phase is not ReplicaPhase.EXITED:
            latest[status.rank] = status
    return tuple(latest[rank] for rank in sorted(latest))


def _order(status: ReplicaStatus) -> _Order:
    return _Order[status.phase.name]


def _onward(now: AttemptPhase, told: AttemptPhase) -> AttemptPhase:
    """A live attempt goes starting → running → stopping and never back."""
    order = (AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.STOPPING)
    return max(now, told, key=order.index)


def _fate(before: Before, phase: AttemptPhase) -> RunPhase:
    if phase is AttemptPhase.SUCCEEDED:
        return RunPhase.SUCCEEDED
    if phase is AttemptPhase.FAILED:
        return RunPhase.FAILED
    if before.stop_requested:
        return RunPhase.CANCELLED
    # Lost, or stopped though no user asked (its machine is going down): not the script's doing, so it is tried again.
    return RunPhase.QUEUED if before.lost + 1 < before.max_attempts else RunPhase.FAILED

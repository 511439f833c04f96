"""What news of an attempt means for it and its run. Pure: rows in, changes out."""

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
    summarise,
)
from hopyard.domain.ids import AttemptId
from hopyard.domain.run import RunPhase
from hopyard.domain.setbacks import Setback, ordinal, pause_s

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

    lost: how many attempts in a row were lost before it, since the run got any further. refused: the same of
    attempts that its node could not start. preempted: it was asked to make room. optional: ranks that are not
    essential.
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
    refused: int = 0


@dataclass(frozen=True, slots=True)
class After:
    """What to write. `exit` is set exactly when the attempt is over; `requeued` when its run waits again,
    after `setback` and for `pause_s` at least. lost, refused: as of `Before`, for the next attempt."""

    phase: AttemptPhase
    replicas: tuple[ReplicaStatus, ...]
    run_phase: RunPhase
    exit: Exit | None = None
    setback: Setback | None = None
    pause_s: float = 0.0
    lost: int = 0
    refused: int = 0

    @property
    def began_at(self) -> datetime | None:
        """When the scripts of all replicas had begun; None where a replica did not say."""
        return _last([one.began_at for one in self.replicas])

    @property
    def ended_at(self) -> datetime | None:
        """When the scripts of all replicas had ended, which may be long before the news of it; None where a
        replica did not say."""
        return None if self.exit is None else _last([one.ended_at for one in self.replicas])

    @property
    def put_back(self) -> str:
        """Why its run waits for `pause_s`, and for which time in a row; "" where it need not."""
        if self.exit is None or not self.pause_s:
            return ""
        times = self.refused or self.lost
        return self.exit.reason + (f" (the {ordinal(times)} time in a row)" if times > 1 else "")

    @property
    def requeued(self) -> bool:
        return self.run_phase is RunPhase.QUEUED

    def asks_to_end(self, before: AttemptPhase) -> bool:
        """Whether it is by this change that the attempt, in this phase before, is asked to end."""
        return self.phase is AttemptPhase.STOPPING and before is not AttemptPhase.STOPPING


def _last(times: Sequence[datetime | None]) -> datetime | None:
    known = [at for at in times if at is not None]
    return max(known) if known and len(known) == len(times) else None


def lost(reason: str) -> Exit:
    """The end of an attempt of which nobody knows how it went."""
    return Exit(ExitKind.LOST, 1, reason)


def take_in(before: Before, news: AttemptStatus) -> After | None:
    """The attempt after `news`; None when it changes nothing."""
    replicas = merge(before.replicas, news.replicas, size=before.size)
    told, exit = summarise(
        AttemptStatus(before.attempt, replicas), size=before.size, optional=before.optional
    )
    if not told.live:
        return end(before, told, exit or lost(VANISHED), replicas=replicas)
    phase = _onward(before.phase, told)
    if phase is before.phase:
        return None if replicas == before.replicas else After(phase, replicas, before.run_phase)
    return After(phase, replicas, RunPhase(phase.value))


def end(
    before: Before, phase: AttemptPhase, exit: Exit, *, replicas: tuple[ReplicaStatus, ...] | None = None
) -> After:
    """The attempt is over: what becomes of its run."""
    known = before.replicas if replicas is None else replicas
    left = _made_room(before, phase, exit, known)
    if left is not None:
        fate = RunPhase.CANCELLED if before.stop_requested else RunPhase.QUEUED
        ended = AttemptPhase.STOPPED if phase is AttemptPhase.FAILED else phase
        return After(
            ended, known, fate, left, Setback.MADE_ROOM if fate is RunPhase.QUEUED else None, lost=before.lost
        )
    if phase is AttemptPhase.SUCCEEDED:
        return After(phase, known, RunPhase.SUCCEEDED, exit)
    if exit.kind is ExitKind.NODE_FAULT and not before.stop_requested:
        times = before.refused + 1
        pause = pause_s(Setback.NODE_FAULT, times)
        return After(phase, known, RunPhase.QUEUED, exit, Setback.NODE_FAULT, pause, before.lost, times)
    if phase is AttemptPhase.FAILED and exit.kind is not ExitKind.NODE_FAULT:
        return After(phase, known, RunPhase.FAILED, exit)
    if before.stop_requested:
        return After(phase, known, RunPhase.CANCELLED, exit)
    # Lost, or stopped though no user asked (its machine is going down): not the script's doing, so it is
    # tried again.
    times = before.lost + 1
    if times >= before.max_attempts:
        return After(phase, known, RunPhase.FAILED, _given_up(exit, times))
    return After(phase, known, RunPhase.QUEUED, exit, Setback.LOST, pause_s(Setback.LOST, times), times)


def _given_up(exit: Exit, times: int) -> Exit:
    """The end of a run that loses its attempts, with how often that was."""
    if times == 1:
        return exit
    return replace(
        exit,
        reason=f"{exit.reason}; given up after the {ordinal(times)} loss in a row without a newer checkpoint",
    )


def fail_launch(before: Before, reason: str, kind: ExitKind) -> After:
    """It could not be started. kind: NODE_FAULT, PREPARE_FAILED where that is the run's own fault, or
    LOST."""
    phase = AttemptPhase.LOST if kind is ExitKind.LOST else AttemptPhase.FAILED
    return end(before, phase, Exit(kind, 125 if kind is ExitKind.PREPARE_FAILED else 1, reason))


def _made_room(
    before: Before, phase: AttemptPhase, exit: Exit, replicas: tuple[ReplicaStatus, ...]
) -> Exit | None:
    """Its exit when it ended because it made room; None when it ended otherwise.

    Replicas that are asked to leave do not all leave at once, and whoever loses its peers ends with an error:
    where one says that it was preempted, the attempt was.
    """
    if exit.kind is ExitKind.PREEMPTED or (
        before.preempted and phase in (AttemptPhase.STOPPED, AttemptPhase.LOST)
    ):
        return exit
    if before.preempted and phase is AttemptPhase.FAILED and exit.kind in _OF_LOST_PEERS:
        return next(
            (one.exit for one in replicas if one.exit is not None and one.exit.kind is ExitKind.PREEMPTED),
            None,
        )
    return None


def stop(before: Before) -> After:
    """Somebody wants it to end."""
    return After(AttemptPhase.STOPPING, before.replicas, RunPhase.STOPPING)


def merge(
    known: tuple[ReplicaStatus, ...], news: tuple[ReplicaStatus, ...], *, size: int
) -> tuple[ReplicaStatus, ...]:
    """What each replica said last, by rank. One never goes back: an exit stands, and old news of a run-up is
    dropped.

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

"""One launch of a run on an engine: its phases, and how it ended, in words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from hopyard.domain.ids import AttemptId


class AttemptPhase(StrEnum):
    STARTING = "starting"  # placed; the engine prepares code, data and environment
    RUNNING = "running"  # the user's process of every replica has started
    STOPPING = "stopping"  # asked to end
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  # ended because somebody asked
    LOST = "lost"  # its processes vanished without a word

    @property
    def is_live(self) -> bool:
        return self in _LIVE_PHASES


_LIVE_PHASES = frozenset({AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.STOPPING})


class ExitKind(StrEnum):
    EXIT_CODE = "exit-code"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out-of-memory"
    TIME_LIMIT = "time-limit"
    STOPPED = "stopped"
    PREEMPTED = "preempted"  # it made room for another run; its own goes on from the newest checkpoint
    LOST = "lost"
    PREPARE_FAILED = "prepare-failed"  # code, data or environment could not be put in place
    NODE_FAULT = "node-fault"  # the node, or the server, could not start it: not the run's doing
    PEER_FAILED = "peer-failed"  # ended because another replica of the gang ended badly


@dataclass(frozen=True, slots=True)
class Exit:
    """How a replica or an attempt ended.

    code: what the script returned; for a signal 128 + its number, as a shell says it.
    reason: one sentence for people, with the numbers ("used 1.2 GiB of 1.0 GiB memory").
    """

    kind: ExitKind
    code: int
    reason: str

    @property
    def is_success(self) -> bool:
        return self.kind is ExitKind.EXIT_CODE and self.code == 0


class ReplicaPhase(StrEnum):
    PREPARING = "preparing"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """What one replica says of itself. `exit` is set exactly when `phase` is EXITED.

    detail: while preparing, what it is doing ("building environment 3f2a…"). began_at, ended_at: when its
    script did, as the replica saw it, by the clock of the server; None where that is not known. Two statuses
    that differ in these only are equal.
    """

    rank: int
    phase: ReplicaPhase
    detail: str = ""
    exit: Exit | None = None
    began_at: datetime | None = field(default=None, compare=False)
    ended_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """All replicas of an attempt that an engine knows.
    One that it launched and no longer finds alive has exited as LOST."""

    attempt: AttemptId
    replicas: tuple[ReplicaStatus, ...]


# When several replicas end badly, the cause is told, not its consequences. A replica that vanished breaks its
# peers' connections, and they end with an exit code: the attempt is lost then, and repeated.
_BLAME_ORDER = (
    ExitKind.OUT_OF_MEMORY,
    ExitKind.TIME_LIMIT,
    ExitKind.PREPARE_FAILED,
    ExitKind.NODE_FAULT,
    ExitKind.LOST,
    ExitKind.EXIT_CODE,
    ExitKind.SIGNAL,
    ExitKind.STOPPED,
    ExitKind.PREEMPTED,
    ExitKind.PEER_FAILED,
)


def gang_state(
    status: AttemptStatus, *, size: int, optional: Collection[int] = ()
) -> tuple[AttemptPhase, Exit | None]:
    """The phase of a gang of `size` replicas from what its replicas say.
    optional: the ranks that are not essential.

    It runs when all run, succeeds when all essential ones succeed; once one of those ended badly the whole
    has failed (the engine ends the others), and the exit is that of the replica to blame, with its rank named
    when there are several. How the others end is of no matter.
    A gang is over only when every replica has exited: until then a bad exit, or the last essential one, shows
    as STOPPING.
    """
    replicas = {r.rank: r for r in status.replicas if 0 <= r.rank < size}.values()
    exits = [(r.rank, r.exit) for r in replicas if r.exit is not None]
    bad = [(rank, e) for rank, e in exits if not e.is_success and rank not in optional]
    if bad:
        rank, worst = min(bad, key=lambda pair: (_BLAME_ORDER.index(pair[1].kind), pair[0]))
        reason = worst.reason if size == 1 else f"replica {rank}: {worst.reason}"
        told = Exit(worst.kind, worst.code, reason)
        if len(exits) < size:
            return AttemptPhase.STOPPING, told
        if worst.kind is ExitKind.LOST:
            return AttemptPhase.LOST, told
        if worst.kind in (ExitKind.STOPPED, ExitKind.PREEMPTED):
            return AttemptPhase.STOPPED, told
        return AttemptPhase.FAILED, told
    if len(exits) == size:
        return AttemptPhase.SUCCEEDED, Exit(ExitKind.EXIT_CODE, 0, "finished")
    if optional and sum(rank not in optional for rank, _ in exits) == size - len(optional):
        return AttemptPhase.STOPPING, None
    begun = sum(r.phase is not ReplicaPhase.PREPARING for r in replicas)
    return (AttemptPhase.RUNNING if begun == size else AttemptPhase.STARTING), None

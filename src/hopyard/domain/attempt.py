"""One launch of a run on an engine: its phases, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import field
from datetime import datetime

from hopyard.backports import StrEnum, dataclass
from hopyard.domain.ids import AttemptId
from hopyard.domain.peer_failure import is_peer_failure


class AttemptPhase(StrEnum):
    STARTING = "starting"  # placed; the engine prepares code, data and environment
    RUNNING = "running"  # the user's process of every replica has started
    STOPPING = "stopping"  # a stop was requested
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  # ended on request
    LOST = "lost"  # its processes disappeared without an exit

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
    PREEMPTED = "preempted"  # it was preempted; its run resumes from the newest checkpoint
    LOST = "lost"
    PREPARE_FAILED = "prepare-failed"  # code, data or environment could not be put in place
    NODE_FAULT = "node-fault"  # the node, or the server, could not start it: not the fault of the run
    PEER_FAILED = "peer-failed"  # ended because another replica of the gang ended badly


@dataclass(frozen=True, slots=True)
class Exit:
    """How a replica or an attempt ended.

    code: the exit code of the script; for a signal 128 + its number, as in a shell. reason: one sentence for
    users, with the numbers ("used 1.2 GiB of 1.0 GiB memory").
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
    """The last report of one replica. `exit` is set exactly when `phase` is EXITED.

    detail: the current step of the preparation ("building environment 3f2a…"). began_at, ended_at: start and
    end of its script, as observed by the replica, by the server's clock; None if unknown. They are ignored
    when two statuses are compared. is_unsent: whether the engine gave up sending its last output and files.
    """

    rank: int
    phase: ReplicaPhase
    detail: str = ""
    exit: Exit | None = None
    began_at: datetime | None = field(default=None, compare=False)
    ended_at: datetime | None = field(default=None, compare=False)
    is_unsent: bool = False


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """All replicas of an attempt that an engine knows. A launched replica that is no longer alive has exited
    as LOST."""

    attempt: AttemptId
    replicas: tuple[ReplicaStatus, ...]


# If several replicas end badly, the cause is reported, not its consequences. A lost replica breaks the
# connections of its peers, which then end with an exit code. So the attempt counts as lost and is retried.
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

_OWN_ENDS = (ExitKind.EXIT_CODE, ExitKind.SIGNAL)  # by which a script ends itself
_ORDERED_ENDS = (ExitKind.STOPPED, ExitKind.PREEMPTED)  # of the whole gang, for which no replica is to blame


def gang_state(
    status: AttemptStatus,
    *,
    size: int,
    optional: Collection[int] = (),
    services: Collection[int] = (),
) -> tuple[AttemptPhase, Exit | None]:
    """Derives the phase of a gang of `size` replicas from the phases of its replicas.

    optional: the ranks that the gang does not wait for. services: those of them that end it by a failure
    before.

    The gang runs when all replicas run, and succeeds when all essential replicas succeed. It has failed once
    an essential replica ended badly; the engine then stops the others. The exit is that of the replica to
    blame, with its rank if there are several: of equal kinds the first one, except that a broken connection
    is the consequence of another failure. An ordered end names no rank, since all replicas get the order, and
    any of them may be the first to end. Its exit is that of the lowest rank, which saves the checkpoint;
    services, which save none, come last. The exits of the others are ignored. The gang ends only when every
    replica has exited. Until then it is STOPPING after a bad exit, or after the exit of the last essential
    replica.
    """
    replicas = {replica.rank: replica for replica in status.replicas if 0 <= replica.rank < size}.values()
    exits = [(replica.rank, replica.exit) for replica in replicas if replica.exit is not None]
    succeeded = sum(exit.is_success and rank not in optional for rank, exit in exits)
    is_served = succeeded == size - len(optional)  # services are ended after the others
    failures = [
        (_blame(replica, is_service=replica.rank in services), replica.rank, replica.exit)
        for replica in replicas
        if replica.exit is not None
        and not replica.exit.is_success
        and (replica.rank not in optional or (replica.rank in services and not is_served))
    ]
    if failures:
        _, rank, worst = min(failures, key=lambda failure: failure[:2])
        is_anonymous = size == 1 or worst.kind in _ORDERED_ENDS
        reason = worst.reason if is_anonymous else f"replica {rank}: {worst.reason}"
        gang_exit = Exit(worst.kind, worst.code, reason)
        if len(exits) < size:
            return AttemptPhase.STOPPING, gang_exit
        if worst.kind is ExitKind.LOST:
            return AttemptPhase.LOST, gang_exit
        if worst.kind in _ORDERED_ENDS:
            return AttemptPhase.STOPPED, gang_exit
        return AttemptPhase.FAILED, gang_exit
    if len(exits) == size:
        return AttemptPhase.SUCCEEDED, Exit(ExitKind.EXIT_CODE, 0, "finished")
    if optional and sum(rank not in optional for rank, _ in exits) == size - len(optional):
        return AttemptPhase.STOPPING, None
    started = sum(replica.phase is not ReplicaPhase.PREPARING for replica in replicas)
    return (AttemptPhase.RUNNING if started == size else AttemptPhase.STARTING), None


def _blame(replica: ReplicaStatus, *, is_service: bool) -> tuple[int, bool, float]:
    """Returns the place of a failed replica in the order of those to blame, the smallest first."""
    assert replica.exit is not None
    kind = replica.exit.kind
    is_consequence = kind in _OWN_ENDS and is_peer_failure(replica.exit.reason)
    place = _BLAME_ORDER.index(ExitKind.SIGNAL if is_consequence else kind)
    if kind in _ORDERED_ENDS:
        return place, is_consequence, float(is_service)
    ended_at = math.inf if replica.ended_at is None else replica.ended_at.timestamp()
    return place, is_consequence, ended_at

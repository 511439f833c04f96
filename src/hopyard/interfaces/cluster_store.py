from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from hopyard.domain.attempt import AttemptStatus
from hopyard.domain.cluster import Hold, Node, Observation, Plan, PlanResult, Snapshot
from hopyard.domain.ids import AttemptId, RunId


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt whose end was recorded by this write (told once)."""

    run: RunId
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a `record` changed. changed: runs whose phase or exit is another now; ended: attempts that ended by it;
    requeued: runs put back to the queue because their attempt was lost."""

    changed: tuple[RunId, ...] = ()
    ended: tuple[Ended, ...] = ()
    requeued: tuple[RunId, ...] = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """Who decides until `until`. epoch: larger than that of every holder before; a plan is applied under it."""

    holder: str
    epoch: int
    until: datetime


class ClusterStore(Protocol):
    """The truth about what waits and what runs. Every change of phase goes through here, one guarded write each."""

    async def snapshot(self, *, now: datetime) -> Snapshot:
        """Nodes, queued gangs, and the placements of live attempts, all of one moment."""
        ...

    async def lead(self, holder: str, *, now: datetime, ttl: timedelta) -> Lease | None:
        """Take or renew the lease: `holder` leads until now + ttl. None while another one's has not expired."""
        ...

    async def note_holds(self, holds: Sequence[Hold], /, *, now: datetime, epoch: int) -> Sequence[RunId]:
        """Write why runs wait (those that still do); the runs whose hold is another now. Raises NotLeader."""
        ...

    async def request_preempt(self, run: RunId, reason: str, /, *, now: datetime) -> Recorded:
        """Its live attempt goes to `stopping` to make room, and its run back to the queue once it ended. A run that is not
        live, or is being stopped, is left. Raises NotFound."""
        ...

    async def apply(self, plan: Plan, /, *, now: datetime, epoch: int) -> PlanResult:
        """Raises NotLeader, and writes nothing, under an epoch that is not the lease's. Re-check the plan gang by gang against today's state and commit what still fits: the run goes from `queued` to
        `starting` with a new attempt (its number = attempts so far + 1, resuming from the run's newest checkpoint).
        Attempts to preempt go to `stopping`; promises and breaches are kept. Holds are not written (`note_holds`)."""
        ...

    async def record(self, engine: str, seen: Observation, /, *, now: datetime, complete: bool = True) -> Recorded:
        """Take in what an engine saw. News of an attempt that is not its run's newest live one is ignored.

        Nodes of the engine are replaced by those seen (absent ones become not ready). When `complete`, a live attempt of
        this engine in phase `running` or `stopping` that is absent from `seen` is lost; one in `starting` is left (it may
        not have been launched yet). A replica never goes back: its exit stands. A lost attempt, or one that was stopped
        unasked, puts its run back to `queued`, unless a stop was requested (then `cancelled`) or `max_attempts` is used up
        (then `failed`). With complete=False only the attempts given are looked at, nodes ignored.
        """
        ...

    async def record_status(self, status: AttemptStatus, /, *, now: datetime) -> Recorded:
        """`record` for one attempt, as its replicas report it; replicas not named keep what they said before."""
        ...

    async def replicas(self, attempt: AttemptId, /) -> AttemptStatus:
        """What the replicas of an attempt said last. Raises NotFound."""
        ...

    async def fail_launch(self, attempt: AttemptId, reason: str, /, *, now: datetime) -> Recorded:
        """The engine could not start it: counts as a lost attempt with this reason."""
        ...

    async def request_stop(self, run: RunId, /, *, now: datetime) -> Recorded:
        """A queued run is cancelled at once; a live one goes to `stopping`; a final one is left. Raises NotFound."""
        ...

    async def live_attempts(self) -> Mapping[AttemptId, str]:
        """Attempts that are not over, with their phase (AttemptPhase value)."""
        ...

    async def nodes(self) -> Sequence[Node]: ...

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from hopyard.domain.attempt import AttemptStatus, ExitKind
from hopyard.domain.cluster import Hold, Node, Observation, Plan, PlanResult, ServerRecord, Snapshot
from hopyard.domain.ids import AttemptId, NodeId, RunId, Version
from hopyard.domain.run import Run, RunEvent


@dataclass(frozen=True, slots=True)
class Lease:
    """Who decides, until when. Each change of holder has a larger epoch than all before it."""

    holder: str
    epoch: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt whose end was recorded by this write (reported once)."""

    run: RunId
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class RecordResult:
    """The changes of a `record`. changed: runs with a new phase or exit; ended: attempts that ended by it;
    requeued: runs requeued because their attempt was lost."""

    changed: tuple[RunId, ...] = ()
    ended: tuple[EndedAttempt, ...] = ()
    requeued: tuple[RunId, ...] = ()


class ClusterStore(Protocol):
    """The state of waiting and live runs. Every change of phase is one guarded write of this store."""

    async def acquire_lease(self, holder: str, /, *, now: datetime, ttl: timedelta) -> Lease | None:
        """Take the lease, or renew it, until `now + ttl`; None while another holder's has not expired.
        `holder` names one process; a later one may use the name again only where it is certain that the other
        has ended. All ask for the same `ttl`: a lease for more than twice as long is from before the clock
        was set back, and holds nobody up."""
        ...

    async def release_lease(self, holder: str, /) -> None:
        """Let go of the lease, if it is this holder's, so that another may lead at once.
        Its epoch is over."""

    async def version(self) -> Version:
        """Changes with every change of the snapshot, by any server."""
        ...

    async def snapshot(self, *, now: datetime) -> Snapshot:
        """Returns a consistent view for a policy. Parts unchanged since the last snapshot of this store are
        the same objects: gangs, nodes, and whole tuples and mappings."""
        ...

    async def apply(self, plan: Plan, /, *, now: datetime, epoch: int) -> PlanResult:
        """Re-checks the plan gang by gang against the current state and commits the gangs that still fit.
        Raises NotLeader, with nothing written, unless `epoch` is that of the lease.

        place: the run goes from `queued` to `starting` with a new attempt (its number = attempts so far + 1,
        resuming from the run's newest checkpoint). What the gang asks for is read from the store, not from
        the plan; of an elastic gang the plan says how many replicas. preempt: the attempt goes to `stopping`,
        and its run back to `queued` when it has ended; one that is over, stopping, or not preemptible is
        passed over, as is one that makes room for a gang which no longer waits as it did in the snapshot that
        the plan is based on. promises: replace those that stand; none is given to such a gang, and no breach
        of one is reported. Holds are not written, see `note_holds`.
        """
        ...

    async def record_holds(
        self, holds: Sequence[Hold], /, *, based_on: Version, now: datetime, epoch: int
    ) -> Sequence[RunId]:
        """Write why the runs that still wait do so: position, reason, detail, what blocks them and when they
        are expected to start. Nothing is written of a run that was changed after `based_on`: it may wait for
        something else. Returns those whose hold is another now (not those that only moved up together).
        Raises NotLeader."""
        ...

    async def record_observation(
        self,
        engine: str,
        observed: Observation,
        /,
        *,
        now: datetime,
        complete: bool = True,
        launched: Collection[AttemptId] | None = None,
    ) -> RecordResult:
        """Take in what an engine saw. News of an attempt that is not its run's newest live one is ignored.

        Nodes of the engine are replaced by those seen (absent ones become not ready). When `complete`, a live
        attempt of this engine in phase `running` or `stopping` that is absent from `observed` is lost; one in
        `starting` is left (it may not have been launched yet), and so is one that is not in `launched` where
        that is given: attempts that were launched before the engine looked, so that it had to see them. A
        replica never goes back: its exit stands. A lost attempt, or one that was stopped unasked, puts its
        run back to `queued`, unless a stop was requested (then `cancelled`) or `max_attempts` were lost (then
        `failed`); one that was preempted always goes back to `queued`. A run goes back with the time at which
        it was submitted. With complete=False only the attempts given are looked at, nodes ignored.

        What a node says of itself is not believed blindly: negative amounts are none, a GPU index counts
        once. What an administrator said of it (`cordon`) stays. With the end of an attempt the store learns:
        what it used (`used`), how long its run was served, and, when the run is over, how long it took
        (`durations`).
        """
        ...

    async def record_status(self, status: AttemptStatus, /, *, now: datetime) -> RecordResult:
        """`record` for one attempt, as its replicas report it; replicas not named keep what they said
        before."""
        ...

    async def replicas(self, attempt: AttemptId, /) -> AttemptStatus:
        """What the replicas of an attempt said last. Raises NotFound."""
        ...

    async def fail_launch(
        self, attempt: AttemptId, reason: str, /, *, now: datetime, kind: ExitKind = ExitKind.LOST
    ) -> RecordResult:
        """The engine could not start it, for this reason. kind: LOST counts as a lost attempt; NODE_FAULT
        puts the run back for a while, however often; PREPARE_FAILED is the run's own fault, and its end."""
        ...

    async def request_stop(self, run: RunId, /, *, now: datetime) -> RecordResult:
        """Requests a stop. A queued run is cancelled at once, a live run goes to `stopping`, a finished run
        is unchanged. Raises NotFound."""
        ...

    async def update_run(self, before: Run, after: Run, event: RunEvent, /) -> None:
        """Write what `after` has of spec, `held_by` and `note`, and the event of that. A run that is held is
        in no snapshot, and no plan starts it; it keeps the time at which it was submitted. A promise is
        withdrawn where a policy sees another gang.

        Compare-and-set: raises Conflict, with nothing written, when the run has other ones than `before` by
        now; and when a policy would see the change (see `domain.run_change.waits_otherwise`) but the run does
        not wait. A plan that was made on the run as it was before does not start it. Raises NotFound."""

    async def request_preempt(self, run: RunId, reason: str, /, *, now: datetime) -> RecordResult:
        """Requests a preemption for no particular gang. The live attempt goes to `stopping`; its run is
        requeued when the attempt has ended. A run that is not live, or is being stopped, is unchanged. Raises
        NotFound."""
        ...

    async def live_attempts(self) -> Mapping[AttemptId, str]:
        """Attempts that are not over, with their phase (AttemptPhase value)."""
        ...

    async def nodes(self) -> Sequence[Node]:
        """Returns the nodes by id; nodes that no engine reports any more are included as not ready."""
        ...

    async def set_cordon(self, node: NodeId, on: bool, /, *, reason: str = "") -> Node:
        """Cordons a node for this reason ("" keeps the current reason), or uncordons it.

        Raises NotFound."""
        ...

    async def record_server(self, server: ServerRecord, /) -> None:
        """Record that a server is up; it replaces what was recorded of its engine before."""
        ...

    async def servers(self) -> Sequence[ServerRecord]:
        """All servers that recorded themselves, by engine."""
        ...

    async def remove_node(self, node: NodeId, /) -> None:
        """Forget a node that its engine no longer sees.
        Raises NotFound; Conflict while it is seen or something is held there."""

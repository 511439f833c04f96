from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from hopyard.domain.attempt import AttemptStatus, ExitKind
from hopyard.domain.cluster import Node, Observation, PlanResult, ServerRecord, Snapshot
from hopyard.domain.ids import AttemptId, NodeId, RunId, Version
from hopyard.domain.plan_record import HoldRecord, PlanRecord
from hopyard.domain.replica import DEFAULT_STOP_ORDER, StopOrder
from hopyard.domain.run import Run, RunEvent


@dataclass(frozen=True, slots=True)
class Lease:
    """The holder of leadership, and its expiry. Each change of holder has a larger epoch than all before
    it."""

    holder: str
    epoch: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt whose end this write recorded (reported once)."""

    run: RunId
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class RecordResult:
    """The changes of a write.

    changed: runs with a new phase or exit. ended: attempts that ended. requeued: runs that were requeued
    because their attempt was lost.
    """

    changed: tuple[RunId, ...] = ()
    ended: tuple[EndedAttempt, ...] = ()
    requeued: tuple[RunId, ...] = ()


class ClusterStore(Protocol):
    """The state of waiting and live runs. Every change of phase is one guarded write of this store."""

    async def acquire_lease(self, holder: str, /, *, now: datetime, ttl: timedelta) -> Lease | None:
        """Acquires or renews the lease until `now + ttl`; returns None while another holder's lease is valid.

        `holder` names one process. A later process may reuse the name only if the earlier one has certainly
        ended. All holders use the same `ttl`: a lease for more than twice as long is from before the clock
        was set back, and is ignored.
        """
        ...

    async def release_lease(self, holder: str, /) -> None:
        """Releases the lease if this holder has it, so that another can lead at once. Its epoch ends."""

    async def version(self) -> Version:
        """Returns a number that changes with every change of the snapshot, by any server."""
        ...

    async def snapshot(self, *, now: datetime) -> Snapshot:
        """Returns a consistent view for a policy. Parts unchanged since the last snapshot of this store are
        the same objects: gangs, nodes, and whole tuples and mappings."""
        ...

    async def apply(self, plan: PlanRecord, /, *, now: datetime, epoch: int) -> PlanResult:
        """Re-checks the plan gang by gang against the current state, and commits the gangs that still fit.

        Raises NotLeader, with nothing written, unless `epoch` is that of the lease.

        place: the run changes from `queued` to `starting` with a new attempt (its number = attempts so far +
        1). It resumes from the run's newest checkpoint. The gang's request is read from the store, not from
        the plan; of an elastic gang, the plan sets the number of replicas.

        preempt: the attempt changes to `stopping`, and its run is requeued once it has ended. Skipped are
        attempts that ended, are stopping, or are not preemptible. Also skipped are attempts that are
        preempted for a gang that no longer waits as in the plan's snapshot.

        promises: replace the current promises. A gang that no longer waits as in the snapshot gets no
        promise, and no breach is recorded for it. Holds are not written, see `record_holds`.
        """
        ...

    async def record_holds(
        self, holds: Sequence[HoldRecord], /, *, based_on: Version, now: datetime, epoch: int
    ) -> Sequence[RunId]:
        """Stores why waiting runs wait: position, reason, detail, blocking runs and expected start.

        Skips a run that was changed after `based_on`: its reason may differ now. Returns the runs whose hold
        changed (a new position alone is no change). Raises NotLeader.
        """
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
        """Applies an observation of an engine. Ignores an attempt that is not the newest live attempt of its
        run.

        Replaces the nodes of the engine by the observed ones; missing nodes become not ready. When
        `complete`, a live attempt of this engine in phase `running` or `stopping` that is missing from
        `observed` is lost. An attempt in `starting` is not lost, because it may not have been launched yet.
        `launched`, if set, are the attempts that were launched before the observation, so that it had to
        include them; others are not lost. A replica's phase never goes back: its exit is final.

        A lost attempt, or one that was stopped without a request, requeues its run. Exceptions: the run
        becomes `cancelled` if a stop was requested, and `failed` if `max_attempts` were lost. A preempted
        attempt always requeues its run. A requeued run keeps its submission time. With complete=False, only
        the given attempts are considered, and nodes are ignored.

        Node reports are validated: negative amounts become zero, and a GPU index counts once. An
        administrator's cordon is kept. When an attempt ends, the store records its usage (`past_usage`), how
        long its run was served, and, if the run ended, its duration (`durations`).
        """
        ...

    async def record_status(self, status: AttemptStatus, /, *, now: datetime) -> RecordResult:
        """Applies the status of one attempt, as reported by its replicas. Missing replicas keep their last
        status."""
        ...

    async def replicas(self, attempt: AttemptId, /) -> AttemptStatus:
        """Returns the last status of the replicas of an attempt. Raises NotFound."""
        ...

    async def fail_launch(
        self, attempt: AttemptId, reason: str, /, *, now: datetime, kind: ExitKind = ExitKind.LOST
    ) -> RecordResult:
        """Records that the engine could not start the attempt, with the reason.

        kind: LOST counts as a lost attempt. NODE_FAULT requeues the run after a backoff, any number of times.
        PREPARE_FAILED is the fault of the run, and ends it.
        """
        ...

    async def request_stop(
        self, run: RunId, order: StopOrder = DEFAULT_STOP_ORDER, /, *, now: datetime
    ) -> RecordResult:
        """Requests a stop. A queued run is cancelled at once, a live run changes to `stopping`, a finished
        run is unchanged. The order of a live run is stored for `stop_orders`, merged with an earlier one.
        Raises NotFound."""
        ...

    async def stop_orders(self) -> Mapping[AttemptId, StopOrder]:
        """Returns the orders of the live attempts that users have stopped."""
        ...

    async def update_run(self, before: Run, after: Run, event: RunEvent, /) -> None:
        """Stores spec, `held_by` and `note` of `after`, and the event.

        A held run is in no snapshot, and no plan starts it; it keeps its submission time. A promise is
        withdrawn if the gang that a policy sees changes.

        Compare-and-set: raises Conflict, with nothing written, if the run no longer equals `before` in these
        fields. Also raises Conflict if the change affects scheduling (see
        `domain.run_change.changes_scheduling`) and the run does not wait. A plan that was made before the
        change does not start the run. Raises NotFound.
        """

    async def request_preempt(self, run: RunId, reason: str, /, *, now: datetime) -> RecordResult:
        """Requests a preemption for no particular gang. The live attempt changes to `stopping`; its run is
        requeued when the attempt has ended. A run that is not live, or is being stopped, is unchanged. Raises
        NotFound."""
        ...

    async def hold_and_preempt(self, run: RunId, user: str, reason: str, /, *, now: datetime) -> RecordResult:
        """Makes a live run held by this user from its next return to the queue, and requests its preemption,
        in one write. A run that is being preempted already is held as well. Raises NotFound; Conflict for a
        run that waits, is being stopped, or has ended."""
        ...

    async def withdraw_hold(self, run: RunId, /) -> bool:
        """Makes a live run return to the queue without a hold. Returns whether it is live and was to be held.
        Raises NotFound."""
        ...

    async def live_attempts(self) -> Mapping[AttemptId, str]:
        """Returns the attempts that have not ended, with their phase (AttemptPhase value)."""
        ...

    async def nodes(self) -> Sequence[Node]:
        """Returns the nodes by id; nodes that no engine reports any more are included as not ready."""
        ...

    async def set_cordon(self, node: NodeId, on: bool, /, *, reason: str = "") -> Node:
        """Cordons a node for this reason ("" keeps the current reason), or uncordons it.

        Raises NotFound."""
        ...

    async def record_server(self, server: ServerRecord, /) -> None:
        """Records that a server is up; replaces the record of its engine."""
        ...

    async def servers(self) -> Sequence[ServerRecord]:
        """Returns all recorded servers, by engine."""
        ...

    async def remove_node(self, node: NodeId, /) -> None:
        """Removes a node that its engine no longer reports. Raises NotFound; Conflict while it is reported or
        in use."""

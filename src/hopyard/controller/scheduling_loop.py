"""Scheduling cycles: read a snapshot, plan, commit, and periodically record why the other runs wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hopyard.controller.background import BackgroundEffects, run_logging_errors
from hopyard.controller.backoff_holds import with_backoff_holds
from hopyard.controller.leader_election import Leadership
from hopyard.controller.plan_batches import batches
from hopyard.controller.plan_records import plan_record
from hopyard.controller.start_estimates import StartEstimates
from hopyard.domain.cluster import Node, Plan, PlanResult, Snapshot
from hopyard.domain.gang import Placement
from hopyard.domain.ids import AttemptId, NodeId, RunId
from hopyard.errors import NotLeader
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.interfaces.policy import SchedulingPolicy, StartForecast

HOLDS_INTERVAL = timedelta(seconds=1)
HOLDS_PAUSE_FACTOR = (
    50  # pause per duration of the last write: writing holds takes at most a fiftieth of the time
)
MAX_HOLDS_PAUSE = timedelta(minutes=1)  # also bounds a duration that is wrong because the clock was set
MAX_SYNCHRONOUS_HOLDS = 500  # up to so many holds are written at once when a caller waits for the cycle
# placements of a first cycle: they start while the next ones are planned. The limit doubles for each cycle
# that reaches it
INITIAL_PLACEMENT_LIMIT = 100
# a policy that took this long runs in a thread the next time, so that requests need not wait for it
POLICY_THREAD_THRESHOLD_S = 0.03
POLICY_THREAD_MIN_PENDING = 20_000  # pending gangs: the very first cycle prepares every gang


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The committed part of a batch: attempts to launch, and attempts to preempt."""

    started: tuple[tuple[AttemptId, Placement], ...] = ()
    preempted: tuple[AttemptId, ...] = ()


class SchedulingLoop:
    """Plans and commits scheduling cycles.

    engine: the engine of this server. on_changed: called for every run that was placed or whose hold was
    written. request_cycle: requests another cycle.
    """

    def __init__(
        self,
        cluster: ClusterStore,
        policy: SchedulingPolicy,
        clock: Clock,
        leadership: Leadership,
        background: BackgroundEffects,
        *,
        engine: str,
        on_changed: Callable[[RunId], None],
        request_cycle: Callable[[], None],
        holds_interval: timedelta | None,
        preempt_grace: timedelta,
        forecast: StartForecast | None = None,
    ) -> None:
        self._cluster, self._policy, self._clock, self._leadership, self._background = (
            cluster,
            policy,
            clock,
            leadership,
            background,
        )
        self._on_changed, self._request_cycle, self._holds_interval = (
            on_changed,
            request_cycle,
            holds_interval,
        )
        self._engine, self._preempt_grace_s = engine, preempt_grace.total_seconds()
        # all nodes, and all nodes with those of other engines marked not ready
        self._reachable_nodes: tuple[Mapping[NodeId, Node], Mapping[NodeId, Node]] = {}, {}
        self._cycle_waiters: list[asyncio.Future[None]] = []
        self._next_cycle_timer: tuple[datetime, asyncio.Task[None]] | None = None
        # the newest plan whose holds, or their estimates, are not written yet
        self._unwritten_holds: tuple[Snapshot, Plan] | None = None
        self._estimates = StartEstimates(forecast, clock)
        self._holds_written_at: datetime | None = None
        self._holds_write_time = timedelta(0)
        self._holds_task: asyncio.Task[None] | None = None
        self.latest_plan: tuple[Snapshot, Plan] | None = None
        self._policy_s = 0.0  # duration of the latest call
        self.made_progress = False  # whether the latest cycle placed or preempted a gang
        self._placement_limit = INITIAL_PLACEMENT_LIMIT
        self.limit_reached = False  # whether the latest plan reached the limit: more gangs may fit

    def next_cycle(self) -> asyncio.Future[None]:
        """Returns a future that is done when a cycle that begins after this call has ended."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cycle_waiters.append(waiter)
        return waiter

    def begin_cycle(self) -> list[asyncio.Future[None]]:
        """Begins a cycle. Returns the waiters to notify at its end."""
        self.made_progress = self.limit_reached = False
        waiters, self._cycle_waiters = self._cycle_waiters, []
        return waiters

    def requeue_waiters(self, waiters: list[asyncio.Future[None]]) -> None:
        """Moves the waiters of a failed cycle to the next one."""
        self._cycle_waiters = waiters + self._cycle_waiters

    async def make_plan(self) -> tuple[Snapshot, Plan] | None:
        """Returns a snapshot and the plan for it. Returns None when no run waits, no promise can be
        withdrawn, and time alone changes nothing."""
        snapshot = self._with_local_facts(
            await self._cluster.snapshot(now=self._clock.now()), max_placements=self._placement_limit
        )
        if (
            not snapshot.pending
            and not snapshot.backing_off
            and not snapshot.promises
            and not snapshot.reservations
        ):
            return None
        if self._policy_s < POLICY_THREAD_THRESHOLD_S and len(snapshot.pending) < POLICY_THREAD_MIN_PENDING:
            plan = self._run_policy(snapshot)
        else:
            plan = await asyncio.to_thread(self._run_policy, snapshot)
        plan = with_backoff_holds(plan, snapshot)
        self.limit_reached = len(plan.place) >= self._placement_limit
        self._placement_limit = 2 * self._placement_limit if self.limit_reached else INITIAL_PLACEMENT_LIMIT
        self.latest_plan = snapshot, plan
        self._schedule_next_cycle(plan.next_cycle_at)
        return snapshot, plan

    def with_scheduler_view(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot as the leading server sees it. When another server leads, all nodes may be
        reachable."""
        return (
            self._with_local_facts(snapshot)
            if self._leadership.is_leader
            else replace(snapshot, preempt_grace_s=self._preempt_grace_s)
        )

    def _with_local_facts(self, snapshot: Snapshot, *, max_placements: int = 0) -> Snapshot:
        """Returns the snapshot with facts that only this server knows, since it may no longer lead when the
        plan is made. max_placements: the limit of placements in one plan; 0 for no limit."""
        nodes = self._mark_unreachable(snapshot.nodes)
        return replace(
            snapshot, nodes=nodes, max_placements=max_placements, preempt_grace_s=self._preempt_grace_s
        )

    def _mark_unreachable(self, nodes: Mapping[NodeId, Node]) -> Mapping[NodeId, Node]:
        """Marks nodes of other engines as not ready, since this server cannot start anything there."""
        if self._reachable_nodes[0] is not nodes:
            unreachable = {
                name: replace(node, ready=False)
                for name, node in nodes.items()
                if node.engine != self._engine
            }
            self._reachable_nodes = nodes, {**nodes, **unreachable} if unreachable else nodes
        return self._reachable_nodes[1]

    def _run_policy(self, snapshot: Snapshot) -> Plan:
        began = time.perf_counter()
        plan = self._policy(snapshot)
        self._policy_s = time.perf_counter() - began
        return plan

    async def commit(self, snapshot: Snapshot, plan: Plan) -> AsyncGenerator[CommittedBatch, None]:
        """Applies the plan under this server's epoch, batch by batch. Yields the committed part of each batch
        at once. Under a stale epoch it stops writing and requests another cycle."""
        epoch = await self._leadership.acquire_epoch()
        if epoch is None:
            self._request_cycle()
            return
        if _has_changes(snapshot, plan):
            for batch in batches(plan, snapshot):
                try:
                    record = plan_record(batch)
                    result = await self._cluster.apply(record, now=self._clock.now(), epoch=epoch)
                except NotLeader:
                    self._leadership.mark_lost()
                    self._request_cycle()
                    return
                yield self._to_committed(batch, result)
        if not self.limit_reached:
            self._unwritten_holds = snapshot, plan

    def _to_committed(self, batch: Plan, result: PlanResult) -> CommittedBatch:
        if result.rejected:
            self._request_cycle()
        placements = {placement.gang.id: placement for placement in batch.place}
        started = tuple(
            (attempt, placements[gang]) for gang, attempt in zip(result.applied, result.attempts, strict=True)
        )
        for gang in result.applied:
            self._on_changed(RunId(gang))
        self.made_progress = self.made_progress or bool(started or result.preempted)
        return CommittedBatch(started, result.preempted)

    async def notify_waiters(self, waiters: list[asyncio.Future[None]]) -> None:
        """Notifies the waiters that the cycle has ended. Unless very many runs wait, the reasons are recorded
        before."""
        if (
            self._unwritten_holds is not None
            and self._unwritten_holds[1].hold
            and self._holds_interval is not None
        ):
            if waiters and len(self._unwritten_holds[1].hold) <= MAX_SYNCHRONOUS_HOLDS:
                await self._write_holds()
            if self._unwritten_holds is not None and (self._holds_task is None or self._holds_task.done()):
                self._holds_task = self._background.spawn(
                    run_logging_errors(self._write_holds_periodically(self._holds_interval))
                )
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _write_holds_periodically(self, interval: timedelta) -> None:
        while self._unwritten_holds is not None:
            if self._holds_written_at is not None:
                pause = max(interval, min(self._holds_write_time * HOLDS_PAUSE_FACTOR, MAX_HOLDS_PAUSE))
                await self._clock.sleep_until(min(self._holds_written_at, self._clock.now()) + pause)
            await self._write_holds()

    async def _write_holds(self) -> None:
        unwritten, self._unwritten_holds = self._unwritten_holds, None
        epoch = await self._leadership.acquire_epoch()
        if epoch is None:
            # The previous cycle may have found nothing to do. Waiting runs must be planned again once the
            # other server is gone.
            self._request_cycle()
            return
        if unwritten is None:
            return
        holds = await self._estimates.with_expected_starts(*unwritten)
        if self._estimates.is_due and self._unwritten_holds is None:
            self._unwritten_holds = unwritten  # written again later, with its own estimates
        self._holds_written_at = self._clock.now()
        try:
            changed = await self._cluster.record_holds(
                holds, based_on=unwritten[0].version, now=self._holds_written_at, epoch=epoch
            )
        except NotLeader:
            self._leadership.mark_lost()
            self._request_cycle()
            return
        self._holds_write_time = self._clock.now() - self._holds_written_at
        for run in changed:
            self._on_changed(run)

    def _schedule_next_cycle(self, at: datetime | None) -> None:
        """Requests another cycle at this time, even if nothing changes until then."""
        if self._next_cycle_timer is not None:
            if self._next_cycle_timer[0] == at and not self._next_cycle_timer[1].done():
                return
            self._next_cycle_timer[1].cancel()
            self._next_cycle_timer = None
        if at is not None:
            self._next_cycle_timer = at, self._background.spawn(self._request_cycle_at(at))

    async def _request_cycle_at(self, at: datetime) -> None:
        await self._clock.sleep_until(at)
        self._request_cycle()


def _has_changes(snapshot: Snapshot, plan: Plan) -> bool:
    """Returns whether the plan changes anything. Most cycles after a submission to a full cluster change
    nothing, and writing such a plan would only delay the next placement."""
    if plan.place or plan.preempt or plan.breaches:
        return True
    return {promise.gang: promise for promise in plan.promises} != snapshot.promises

"""Scheduling turns: look, think, commit, and now and then write down why the others wait."""

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
from hopyard.controller.start_estimates import StartEstimates
from hopyard.domain.cluster import Node, Plan, PlanResult, Snapshot
from hopyard.domain.gang import Placement
from hopyard.domain.ids import AttemptId, NodeId, RunId
from hopyard.errors import NotLeader
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.interfaces.policy import SchedulingPolicy, StartForecast

HOLDS_INTERVAL = timedelta(seconds=1)
HOLDS_PAUSE_FACTOR = 50  # times as long as it took: to say why many wait is worth a fiftieth of the time
MAX_HOLDS_PAUSE = timedelta(minutes=1)  # whatever a clock that was set meanwhile says of how long it took
MAX_SYNCHRONOUS_HOLDS = 500  # waiting gangs: so few holds are written at once when somebody waits for them
# placements: those start while the next are looked for. Of many pieces in a row, each is twice as large as
# the one before
INITIAL_PLACEMENT_LIMIT = 100
# thinking that took so long is done in a thread the next time: requests need not wait for it
POLICY_THREAD_THRESHOLD_S = 0.03
POLICY_THREAD_MIN_PENDING = 20_000  # waiting gangs: the first turn of all lays out every one of them


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """What of a portion of a plan became true: attempts to start, and attempts to ask to make room."""

    started: tuple[tuple[AttemptId, Placement], ...] = ()
    preempted: tuple[AttemptId, ...] = ()


class SchedulingLoop:
    """engine: the one that starts what is placed. on_changed: told of every run that was placed or whose hold
    was written. request_cycle: asks for another turn."""

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
        # all, and as they are for this engine
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
        self._policy_s = 0.0  # the last time
        self.made_progress = False  # whether the last turn placed or preempted anything
        self._placement_limit = INITIAL_PLACEMENT_LIMIT
        self.limit_reached = False  # whether the last plan placed as many as it might: others may fit, too

    def next_cycle(self) -> asyncio.Future[None]:
        """Done when a turn that begins after this call has ended."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cycle_waiters.append(waiting)
        return waiting

    def begin_cycle(self) -> list[asyncio.Future[None]]:
        """Those who are told when the turn that begins now has ended."""
        self.made_progress = self.limit_reached = False
        planned, self._cycle_waiters = self._cycle_waiters, []
        return planned

    def requeue_waiters(self, waiters: list[asyncio.Future[None]]) -> None:
        """The turn failed: they wait for the next one."""
        self._cycle_waiters = waiters + self._cycle_waiters

    async def make_plan(self) -> tuple[Snapshot, Plan] | None:
        """The plan for this moment, and of what it was made; None where nobody waits, no promise is to be
        taken back, and time alone changes nothing."""
        snapshot = self._with_local_knowledge(
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
        """As the server that decides sees it: where that is another one, all nodes may be within its
        reach."""
        return (
            self._with_local_knowledge(snapshot)
            if self._leadership.is_leader
            else replace(snapshot, preempt_grace_s=self._preempt_grace_s)
        )

    def _with_local_knowledge(self, snapshot: Snapshot, *, max_placements: int = 0) -> Snapshot:
        """With what only this server knows, which may lead no longer once the plan is made.
        max_placements: how many are placed in one go; 0: whoever fits."""
        nodes = self._reachable(snapshot.nodes)
        return replace(
            snapshot, nodes=nodes, max_placements=max_placements, preempt_grace_s=self._preempt_grace_s
        )

    def _reachable(self, nodes: Mapping[NodeId, Node]) -> Mapping[NodeId, Node]:
        """Nodes of another server's engine are not ready for this one: it cannot start anything there."""
        if self._reachable_nodes[0] is not nodes:
            far = {
                name: replace(node, ready=False)
                for name, node in nodes.items()
                if node.engine != self._engine
            }
            self._reachable_nodes = nodes, {**nodes, **far} if far else nodes
        return self._reachable_nodes[1]

    def _run_policy(self, snapshot: Snapshot) -> Plan:
        began = time.perf_counter()
        plan = self._policy(snapshot)
        self._policy_s = time.perf_counter() - began
        return plan

    async def commit(self, snapshot: Snapshot, plan: Plan) -> AsyncGenerator[CommittedBatch, None]:
        """Apply the plan under this server's epoch, portion by portion: what of each became true, as soon as
        it is. Under a stale epoch nothing more is written, and another turn is asked for."""
        epoch = await self._leadership.acquire_epoch()
        if epoch is None:
            self._request_cycle()
            return
        if _has_changes(snapshot, plan):
            for portion in batches(plan, snapshot):
                try:
                    result = await self._cluster.apply(portion, now=self._clock.now(), epoch=epoch)
                except NotLeader:
                    self._leadership.mark_lost()
                    self._request_cycle()
                    return
                yield self._to_committed(portion, result)
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
        """The turn has ended. Whoever waits for it finds written why its run waits, unless very many do."""
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
        for waiting in waiters:
            if not waiting.done():
                waiting.set_result(None)

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
            # the turn before may have found nothing to do: who waits is to be looked at again when the other
            # server is gone
            self._request_cycle()
            return
        if unwritten is None:
            return
        holds = await self._estimates.with_expected_starts(*unwritten)
        if self._estimates.is_due and self._unwritten_holds is None:
            self._unwritten_holds = unwritten  # it is written again with its own estimates
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
        """Another turn at this time, although nothing may change until then."""
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
    """Most turns that follow a submission to a full cluster find nothing to do: to write that down would only
    hold up what is free next."""
    if plan.place or plan.preempt or plan.breaches:
        return True
    return {promise.gang: promise for promise in plan.promises} != snapshot.promises

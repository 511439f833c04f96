"""Scheduling turns: look, think, commit, and now and then write down why the others wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hopyard.controller.delayed import with_delayed
from hopyard.controller.effects import Effects, guard_effect
from hopyard.controller.estimates import Estimates
from hopyard.controller.leader import Leadership
from hopyard.controller.portions import portions
from hopyard.domain.cluster import Node, Plan, PlanResult, Snapshot
from hopyard.domain.gang import Placement
from hopyard.domain.ids import AttemptId, NodeId, RunId
from hopyard.errors import NotLeader
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.interfaces.policy import SchedulingPolicy, StartForecast

HOLDS_EVERY = timedelta(seconds=1)
NOTE_PAUSE = 50  # times as long as it took: to say why many wait is worth a fiftieth of the time
LONGEST_PAUSE = timedelta(minutes=1)  # whatever a clock that was set meanwhile says of how long it took
PROMPT_UP_TO = 500  # waiting gangs: so few holds are written at once when somebody waits for them
# placements: those start while the next are looked for. Of many pieces in a row, each is twice as large as
# the one before
PIECE = 100
# thinking that took so long is done in a thread the next time: requests need not wait for it
THREAD_FROM_S = 0.03
PLAINLY_MANY = 20_000  # waiting gangs: the first turn of all lays out every one of them


@dataclass(frozen=True, slots=True)
class Committed:
    """What of a portion of a plan became true: attempts to start, and attempts to ask to make room."""

    started: tuple[tuple[AttemptId, Placement], ...] = ()
    preempted: tuple[AttemptId, ...] = ()


class Turns:
    """engine: the one that starts what is placed. changed: told of every run that was placed or whose hold
    was written. wake: asks for another turn."""

    def __init__(
        self,
        cluster: ClusterStore,
        policy: SchedulingPolicy,
        clock: Clock,
        leader: Leadership,
        effects: Effects,
        *,
        engine: str,
        changed: Callable[[RunId], None],
        wake: Callable[[], None],
        holds_every: timedelta | None,
        preempt_grace: timedelta,
        forecast: StartForecast | None = None,
    ) -> None:
        self._cluster, self._policy, self._clock, self._leader, self._effects = (
            cluster,
            policy,
            clock,
            leader,
            effects,
        )
        self._changed, self._wake, self._holds_every = changed, wake, holds_every
        self._engine, self._preempt_grace_s = engine, preempt_grace.total_seconds()
        # all, and as they are for this engine
        self._nodes: tuple[Mapping[NodeId, Node], Mapping[NodeId, Node]] = {}, {}
        self._waiters: list[asyncio.Future[None]] = []
        self._alarm: tuple[datetime, asyncio.Task[None]] | None = None
        # the newest plan whose holds, or their estimates, are not written yet
        self._unwritten: tuple[Snapshot, Plan] | None = None
        self._estimates = Estimates(forecast, clock)
        self._noted_at: datetime | None = None
        self._note_took = timedelta(0)
        self._noting: asyncio.Task[None] | None = None
        self.latest: tuple[Snapshot, Plan] | None = None
        self._think_s = 0.0  # the last time
        self.fruitful = False  # whether the last turn placed or preempted anything
        self._most = PIECE
        self.cut = False  # whether the last plan placed as many as it might: others may fit, too

    def wait_next(self) -> asyncio.Future[None]:
        """Done when a turn that begins after this call has ended."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiting)
        return waiting

    def begin(self) -> list[asyncio.Future[None]]:
        """Those who are told when the turn that begins now has ended."""
        self.fruitful = self.cut = False
        planned, self._waiters = self._waiters, []
        return planned

    def again(self, planned: list[asyncio.Future[None]]) -> None:
        """The turn failed: they wait for the next one."""
        self._waiters = planned + self._waiters

    async def think(self) -> tuple[Snapshot, Plan] | None:
        """The plan for this moment, and of what it was made; None where nobody waits, no promise is to be
        taken back, and time alone changes nothing."""
        snapshot = self._as_decided(await self._cluster.snapshot(now=self._clock.now()), most=self._most)
        if (
            not snapshot.pending
            and not snapshot.delayed
            and not snapshot.promises
            and not snapshot.reservations
        ):
            return None
        if self._think_s < THREAD_FROM_S and len(snapshot.pending) < PLAINLY_MANY:
            plan = self._think(snapshot)
        else:
            plan = await asyncio.to_thread(self._think, snapshot)
        plan = with_delayed(plan, snapshot)
        self.cut = len(plan.place) >= self._most
        self._most = 2 * self._most if self.cut else PIECE
        self.latest = snapshot, plan
        self._set_alarm(plan.look_again_at)
        return snapshot, plan

    def as_shown(self, snapshot: Snapshot) -> Snapshot:
        """As the server that decides sees it: where that is another one, all nodes may be within its
        reach."""
        return (
            self._as_decided(snapshot)
            if self._leader.leads
            else replace(snapshot, preempt_grace_s=self._preempt_grace_s)
        )

    def _as_decided(self, snapshot: Snapshot, *, most: int = 0) -> Snapshot:
        """With what only this server knows, which may lead no longer once the plan is made.
        most: how many are placed in one go; 0: whoever fits."""
        nodes = self._within_reach(snapshot.nodes)
        return replace(snapshot, nodes=nodes, place_most=most, preempt_grace_s=self._preempt_grace_s)

    def _within_reach(self, nodes: Mapping[NodeId, Node]) -> Mapping[NodeId, Node]:
        """Nodes of another server's engine are not ready for this one: it cannot start anything there."""
        if self._nodes[0] is not nodes:
            far = {
                name: replace(node, ready=False)
                for name, node in nodes.items()
                if node.engine != self._engine
            }
            self._nodes = nodes, {**nodes, **far} if far else nodes
        return self._nodes[1]

    def _think(self, snapshot: Snapshot) -> Plan:
        began = time.perf_counter()
        plan = self._policy(snapshot)
        self._think_s = time.perf_counter() - began
        return plan

    async def commit(self, snapshot: Snapshot, plan: Plan) -> AsyncGenerator[Committed, None]:
        """Apply the plan under this server's epoch, portion by portion: what of each became true, as soon as
        it is. Under a stale epoch nothing more is written, and another turn is asked for."""
        epoch = await self._leader.epoch()
        if epoch is None:
            self._wake()
            return
        if _changes_anything(snapshot, plan):
            for portion in portions(plan, snapshot):
                try:
                    result = await self._cluster.apply(portion, now=self._clock.now(), epoch=epoch)
                except NotLeader:
                    self._leader.lost()
                    self._wake()
                    return
                yield self._committed(portion, result)
        if not self.cut:
            self._unwritten = snapshot, plan

    def _committed(self, portion: Plan, result: PlanResult) -> Committed:
        if result.rejected:
            self._wake()
        placements = {placement.gang.id: placement for placement in portion.place}
        started = tuple(
            (attempt, placements[gang]) for gang, attempt in zip(result.applied, result.attempts, strict=True)
        )
        for gang in result.applied:
            self._changed(RunId(gang))
        self.fruitful = self.fruitful or bool(started or result.preempted)
        return Committed(started, result.preempted)

    async def tell(self, planned: list[asyncio.Future[None]]) -> None:
        """The turn has ended. Whoever waits for it finds written why its run waits, unless very many do."""
        if self._unwritten is not None and self._unwritten[1].hold and self._holds_every is not None:
            if planned and len(self._unwritten[1].hold) <= PROMPT_UP_TO:
                await self._note()
            if self._unwritten is not None and (self._noting is None or self._noting.done()):
                self._noting = self._effects.spawn(guard_effect(self._note_in_time(self._holds_every)))
        for waiting in planned:
            if not waiting.done():
                waiting.set_result(None)

    async def _note_in_time(self, every: timedelta) -> None:
        while self._unwritten is not None:
            if self._noted_at is not None:
                pause = max(every, min(self._note_took * NOTE_PAUSE, LONGEST_PAUSE))
                await self._clock.sleep_until(min(self._noted_at, self._clock.now()) + pause)
            await self._note()

    async def _note(self) -> None:
        unwritten, self._unwritten = self._unwritten, None
        epoch = await self._leader.epoch()
        if epoch is None:
            # the turn before may have found nothing to do: who waits is to be looked at again when the other
            # server is gone
            self._wake()
            return
        if unwritten is None:
            return
        holds = await self._estimates.put_into(*unwritten)
        if self._estimates.due and self._unwritten is None:
            self._unwritten = unwritten  # it is written again with its own estimates
        self._noted_at = self._clock.now()
        try:
            changed = await self._cluster.note_holds(
                holds, based_on=unwritten[0].version, now=self._noted_at, epoch=epoch
            )
        except NotLeader:
            self._leader.lost()
            self._wake()
            return
        self._note_took = self._clock.now() - self._noted_at
        for run in changed:
            self._changed(run)

    def _set_alarm(self, at: datetime | None) -> None:
        """Another turn at this time, although nothing may change until then."""
        if self._alarm is not None:
            if self._alarm[0] == at and not self._alarm[1].done():
                return
            self._alarm[1].cancel()
            self._alarm = None
        if at is not None:
            self._alarm = at, self._effects.spawn(self._ring(at))

    async def _ring(self, at: datetime) -> None:
        await self._clock.sleep_until(at)
        self._wake()


def _changes_anything(snapshot: Snapshot, plan: Plan) -> bool:
    """Most turns that follow a submission to a full cluster find nothing to do: to write that down would only
    hold up what is free next."""
    if plan.place or plan.preempt or plan.breaches:
        return True
    return {promise.gang: promise for promise in plan.promises} != snapshot.promises

"""The loops: what waits is placed and launched, what runs is observed, what ended is cleared away.

Decisions are the policy's and the store's; here are the effects and the only clock. Level-triggered throughout: a lost
message costs one tick, and a new controller finds everything by looking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta

from hopyard.controller.effects import Effects, guard_effect, guard_step
from hopyard.controller.endings import DEFAULT_GRACE, PREEMPT_GRACE, Endings
from hopyard.controller.families import Families
from hopyard.controller.launcher import Launcher
from hopyard.controller.launches import Composer
from hopyard.controller.leader import LEASE, Leadership
from hopyard.controller.turns import HOLDS_EVERY, LONGEST_PAUSE, Turns
from hopyard.domain.attempt import AttemptPhase, AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Node, Observation, Plan, Snapshot
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.run import Run
from hopyard.errors import NotFound
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore, Recorded
from hopyard.interfaces.engine import Engine
from hopyard.interfaces.policy import SchedulingPolicy
from hopyard.interfaces.run_store import RunStore

OBSERVE_EVERY = timedelta(seconds=1)
RETRY_AFTER = timedelta(seconds=1)
# Parts of a turn's time in which nothing is decided: what comes in meanwhile is decided together, and a long queue on a full
# cluster leaves the server to requests.
PAUSE, FRUITLESS_PAUSE = 0.25, 1.0


class Controller:
    """One per server.

    changed: told of every run whose phase, hold or exit may be another now. ended: awaited for every run that became final.
    observe_every: how often the engine is asked while attempts are live; never while none is. holder: this server's name in
    the lease; it may be that of an earlier one where it is certain that it has ended. preempt_grace: how long a run may take to save a checkpoint when it is asked to make room. holds_every: how
    often at most it is written down why runs wait, None for never.
    """

    def __init__(
        self,
        *,
        cluster: ClusterStore,
        runs: RunStore,
        engine: Engine,
        policy: SchedulingPolicy,
        clock: Clock,
        composer: Composer,
        changed: Callable[[RunId], None] = lambda _: None,
        ended: Callable[[Run], Awaitable[None]] | None = None,
        observe_every: timedelta = OBSERVE_EVERY,
        holder: str = "server",
        lease: timedelta = LEASE,
        preempt_grace: timedelta = PREEMPT_GRACE,
        holds_every: timedelta | None = HOLDS_EVERY,
    ) -> None:
        self._cluster, self._runs, self._engine, self._clock = cluster, runs, engine, clock
        self._changed, self._on_ended, self._observe_every = changed, ended, observe_every
        self._wake, self._active = asyncio.Event(), asyncio.Event()
        self._quiet = asyncio.Lock()  # no launch begins between the last look at what is live and the record of what was seen
        self._effects = Effects()
        self._leader = Leadership(cluster, clock, holder=holder, ttl=lease)
        self._endings = Endings(engine, clock, self._effects, asking=self._active.set, preempt_grace=preempt_grace)
        self._launcher = Launcher(
            cluster=cluster,
            runs=runs,
            engine=engine,
            clock=clock,
            composer=composer,
            endings=self._endings,
            react=self._react,
        )
        self._turns = Turns(
            cluster, policy, clock, self._leader, self._effects, changed=changed, wake=self.wake, holds_every=holds_every
        )
        self._families = Families(runs, self.stop)
        self._epoch: int | None = None  # under which `_live` is known
        self._live: set[AttemptId] = set()
        self._said: dict[tuple[AttemptId, int], ReplicaStatus] = {}
        self._nodes: tuple[Node, ...] = ()

    # -- what the server calls ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something waits, or something became free: schedule soon."""
        self._wake.set()

    async def wait_planned(self, timeout_s: float) -> bool:
        """Wait for a scheduling turn that begins after this call; False when none ended within `timeout_s`."""
        waiting = self._turns.wait_next()
        self.wake()
        try:
            async with asyncio.timeout(timeout_s):
                await waiting
        except TimeoutError:
            return False
        return True

    @property
    def latest(self) -> tuple[Snapshot, Plan] | None:
        """What was decided last, and on what; None before the first turn."""
        return self._turns.latest

    async def stop(self, run: RunId, *, grace: timedelta = DEFAULT_GRACE, at_safe_point: bool = False) -> None:
        """End a run: at once when it waits, else its processes are asked and, after `grace`, killed. at_safe_point: a script that
        has safe points leaves at its next one, with a checkpoint. Raises NotFound."""
        recorded = await self._cluster.request_stop(run, now=self._clock.now())
        found = await self._runs.get(run)
        if found.attempt is not None and AttemptPhase(found.attempt.phase).live:
            self._endings.ask_within(found.attempt.id, grace, preempt=at_safe_point)
        await self._react(recorded)
        if found.phase.final and recorded.changed and not recorded.ended:  # it waited: no attempt ends, the run does
            self.wake()
            self._effects.spawn(self._tell_ended(run))

    async def preempt(self, run: RunId, reason: str) -> None:
        """Ask a live run to save a checkpoint and make room; it waits again afterwards. One that is not live is left alone.
        Raises NotFound."""
        await self._react(await self._cluster.request_preempt(run, reason, now=self._clock.now()))
        found = await self._runs.get(run)
        if found.attempt is not None and found.attempt.phase == AttemptPhase.STOPPING and not found.stop_requested:
            self._endings.ask(found.attempt.id, preempt=True)

    async def hear(self, attempt: AttemptId, status: ReplicaStatus) -> bool:
        """What a replica says of itself; whether it should end. Late news of an old attempt changes nothing."""
        if self._said.get((attempt, status.rank)) != status:
            recorded = await self._cluster.record_status(AttemptStatus(attempt, (status,)), now=self._clock.now())
            self._said[attempt, status.rank] = status
            await self._react(recorded)
            if status.exit is not None and attempt in self._live and await self._ends_gang(attempt, status.exit, status.rank):
                self._endings.ask(attempt, preempt=status.exit.kind is ExitKind.PREEMPTED)
        if attempt not in self._live:
            await self._look_what_lives()
        return attempt in self._endings or attempt not in self._live

    async def _ends_gang(self, attempt: AttemptId, exit: Exit, rank: int) -> bool:
        """Whether the rest of a gang ends because this replica did: it ended badly, or was the last essential one."""
        run = await self._runs.get(split_attempt(attempt)[0])
        optional = run.optional_ranks()
        if not exit.ok:
            return rank not in optional
        if not optional:
            return False
        said = await self._cluster.replicas(attempt)
        return all(one.exit is not None for one in said.replicas if one.rank not in optional)

    def preempts(self, attempt: AttemptId) -> bool:
        """Whether an attempt that should end is to save a checkpoint first, because it makes room for another."""
        return self._endings.preempts(attempt)

    def grace(self, attempt: AttemptId) -> timedelta:
        """How long an attempt that should end may take."""
        return self._endings.grace(attempt)

    async def look(self) -> None:
        """Look at the engine now: something may have changed of which nobody tells, such as a node that is gone."""
        await guard_step(self._observe_once)

    async def resign(self) -> None:
        """This server ends on purpose: another one may decide at once."""
        await self._leader.resign()

    # -- loops ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Begins by looking at what the engine has, so that what ran before goes on."""
        self._active.set()
        self.wake()
        try:
            await guard_step(self._observe_once)
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._schedule_loop())
                loops.create_task(self._observe_loop())
        finally:
            await self._effects.cancel()
            await self._launcher.cancel()

    async def _schedule_loop(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            began = self._clock.now()
            if await self._leader.epoch() is None:
                self._wake.set()
                await self._clock.sleep_until(began + self._leader.retry_after)
                continue
            if not await guard_step(self._turn):
                self._wake.set()
                await self._clock.sleep_until(self._clock.now() + RETRY_AFTER)
                continue
            ended = self._clock.now()
            if ended > began:
                pause = (ended - began) * (PAUSE if self._turns.fruitful else FRUITLESS_PAUSE)
                await self._clock.sleep_until(ended + min(pause, LONGEST_PAUSE))

    async def _observe_loop(self) -> None:
        while True:
            await self._active.wait()
            await self._clock.sleep_until(self._clock.now() + self._observe_every)
            self._active.clear()
            done = await guard_step(self._observe_once)
            if not done or self._launcher:
                self._active.set()

    # -- scheduling -----------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        planned = self._turns.begin()
        try:
            plan = await self._turns.think()
            if plan is not None:
                async with self._quiet:
                    committed = await self._turns.commit(plan)
                    if committed.started:
                        self._live.update(attempt for attempt, _ in committed.started)
                        self._active.set()
                        self._launcher.launch(committed.started)
                for attempt in committed.preempted:
                    self._endings.ask(attempt, preempt=True)
        except BaseException:
            self._turns.again(planned)
            raise
        await self._turns.tell(planned)

    # -- observing ------------------------------------------------------------------------------------------------

    async def _observe_once(self) -> None:
        epoch = await self._leader.epoch()
        if epoch is None:
            self._active.set()
            return
        async with self._quiet:
            if epoch != self._epoch:  # another server may have decided meanwhile
                await self._look_what_lives()
                self._epoch = epoch
                self._effects.spawn(guard_effect(self._families.end_orphans()))
            before = self._live - self._launcher.under_way()
        seen = await self._engine.observe()
        known = {status.attempt for status in seen.attempts}
        async with self._quiet:
            # Launched while the engine looked, and already heard of: not seen, and yet not lost. Its own word on it is repeated.
            heard = {attempt for attempt, _ in self._said}
            young = [attempt for attempt in self._live & heard if attempt not in known and attempt not in before]
            restated = tuple([await self._cluster.replicas(attempt) for attempt in sorted(young)])
            whole = replace(seen, attempts=seen.attempts + restated) if restated else seen
            recorded = await self._cluster.record(self._engine.name, whole, now=self._clock.now())
        await self._react(recorded)
        for ended in recorded.ended:
            if ended.attempt not in known:  # lost, or only half launched: the engine will never show it, so this is the moment
                await guard_effect(self._engine.forget(ended.attempt))
        if seen.nodes != self._nodes:
            self._nodes = seen.nodes
            self.wake()
        live = await self._look_what_lives()
        self._endings.keep({*live, *known})
        await self._mend(live, known, before)
        remembered = await self._clear_away(seen, live)
        if live or remembered:
            self._active.set()

    async def _mend(self, live: Mapping[AttemptId, str], known: set[AttemptId], before: set[AttemptId]) -> None:
        """What should end is asked to; what was never started (the server ended in between) is started now."""
        unknown = {attempt for attempt in live if attempt in before and attempt not in known and attempt not in self._launcher}
        ending = [attempt for attempt, phase in live.items() if phase == AttemptPhase.STOPPING and attempt not in unknown]
        if not unknown and not ending:
            return
        snapshot = await self._cluster.snapshot(now=self._clock.now())
        running = {running.attempt: running for running in snapshot.running}
        for attempt in ending:
            found = running.get(attempt)
            self._endings.ask(attempt, preempt=found is not None and found.preempted_for is not None)
        for attempt in live:
            if attempt not in unknown:
                continue
            found = running.get(attempt)
            if live[attempt] == AttemptPhase.STARTING and found is not None:
                self._active.set()
                self._launcher.launch([(attempt, found.placement)])
            elif live[attempt] == AttemptPhase.STOPPING:
                await self._launcher.give_up(attempt, "stopped before it was started")

    async def _clear_away(self, seen: Observation, live: Mapping[AttemptId, str]) -> bool:
        """The engine may forget attempts whose end is recorded; those that nobody wants any more are ended first.
        Whether the engine still remembers any."""
        remembered = False
        for status in seen.attempts:
            if status.attempt in live:
                continue
            if all(replica.phase is ReplicaPhase.EXITED for replica in status.replicas):
                await self._engine.forget(status.attempt)
            else:
                remembered = True
                self._endings.ask(status.attempt)
        return remembered

    async def _look_what_lives(self) -> Mapping[AttemptId, str]:
        live = await self._cluster.live_attempts()
        self._live = set(live)
        self._endings.keep_graces(live)
        for key in [key for key in self._said if key[0] not in live]:
            del self._said[key]
        return live

    # -- what follows ---------------------------------------------------------------------------------------------

    async def _react(self, recorded: Recorded) -> None:
        for run in recorded.changed:
            self._changed(run)
        for ended in recorded.ended:
            self._live.discard(ended.attempt)
            self._endings.ended(ended.attempt)
            self._active.set()  # the engine is to forget it
            self._effects.spawn(self._tell_ended(ended.run))
        if recorded.ended or recorded.requeued:
            self.wake()

    async def _tell_ended(self, run_id: RunId) -> None:
        try:
            run = await self._runs.get(run_id)
        except NotFound:
            return
        if run.phase.final:
            await guard_effect(self._families.ended(run))
            if self._on_ended is not None:
                await guard_effect(self._on_ended(run))

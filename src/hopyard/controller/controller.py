"""The loops: what waits is placed and launched, what runs is observed, what ended is cleared away.

Decisions are the policy's and the store's; here are the effects and the only clock. Level-triggered
throughout: a lost message costs one tick, and a new controller finds everything by looking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import datetime, timedelta

from hopyard.controller.effects import Effects, guard_effect, guard_step
from hopyard.controller.endings import DEFAULT_GRACE, PREEMPT_GRACE, Endings
from hopyard.controller.families import Families
from hopyard.controller.launcher import Launcher, Reading
from hopyard.controller.launches import Composer
from hopyard.controller.leader import LEASE, Leadership
from hopyard.controller.quiet import Quiet
from hopyard.controller.reading import read_runs
from hopyard.controller.turns import HOLDS_EVERY, LONGEST_PAUSE, Committed, Turns
from hopyard.controller.watch import Watch
from hopyard.domain.attempt import AttemptPhase, AttemptStatus, Exit, ExitKind, ReplicaStatus
from hopyard.domain.cluster import Observation, Plan, Snapshot
from hopyard.domain.ids import AttemptId, RunId, Version, split_attempt
from hopyard.domain.run import Run, RunEvent
from hopyard.errors import StorageFull
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore, Recorded
from hopyard.interfaces.engine import Engine
from hopyard.interfaces.policy import SchedulingPolicy, StartForecast
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.tells_changes import TellsChanges

OBSERVE_EVERY = timedelta(seconds=1)
RETRY_AFTER = timedelta(seconds=1)
FOLLOW_EVERY = timedelta(seconds=1)
FULL_DISK_WAIT = timedelta(seconds=10)  # beyond a run's grace, for the space that its end makes
# Parts of a turn's time in which nothing is decided, where it took long: what is submitted meanwhile is
# decided together, and a long queue on a full cluster leaves the server to requests. What becomes free may
# end them sooner (see `_rest`).
PAUSE, FRUITLESS_PAUSE = 0.25, 1.0
PAUSE_AFTER = timedelta(milliseconds=20)
LONGEST_WAIT_S = 0.1  # that a turn and what ended wait for each other


class Controller:
    """One per server.

    changed: told of every run whose phase, hold or exit may be another now. ended: awaited for every run that
    became final. observe_every: how often the engine is asked while attempts are live; never while none is.
    One that `TellsChanges` is asked at once when it does. holder: this server's name in
    the lease; it may be that of an earlier one where it is certain that it has ended. preempt_grace: how long
    a run may take to save a checkpoint when it is asked to make room. holds_every: how often at most it is
    written down why runs wait, None for never. shared: whether other servers change the store, too. forecast:
    says when runs that wait probably start, None where that is not to be known.
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
        shared: bool = False,
        forecast: StartForecast | None = None,
    ) -> None:
        self._cluster, self._runs, self._engine, self._clock = cluster, runs, engine, clock
        self._changed, self._on_ended, self._observe_every = changed, ended, observe_every
        self._wake, self._freed, self._active, self._told = (asyncio.Event() for _ in range(4))
        self._glanced = asyncio.Event()  # not set while it is recorded what the engine tells of
        self._glanced.set()
        self._decided = asyncio.Event()  # not set while somebody waits for a turn
        # set once `run` has looked at the engine for the first time: its nodes are known
        self.looked = asyncio.Event()
        self._effects = Effects()
        self._ended: list[RunId] = []  # of which is to be told
        self._telling: asyncio.Task[None] | None = None
        self._leader = Leadership(cluster, clock, holder=holder, ttl=lease)
        self._endings = Endings(
            engine, clock, self._effects, asking=self._active.set, preempt_grace=preempt_grace
        )
        self._launcher = Launcher(
            cluster=cluster,
            runs=runs,
            engine=engine,
            clock=clock,
            composer=composer,
            endings=self._endings,
            react=self._react,
            look=self._glance,
        )
        self._turns = Turns(
            cluster,
            policy,
            clock,
            self._leader,
            self._effects,
            engine=engine.name,
            changed=changed,
            wake=self.wake,
            holds_every=holds_every,
            preempt_grace=preempt_grace,
            forecast=forecast,
        )
        self._quiet = Quiet()
        self._shared, self._version = shared, Version(-1)
        self._families = Families(runs, self.stop)
        self._watch = Watch(
            cluster,
            engine,
            clock,
            self._leader,
            self._launcher,
            self._endings,
            react=self._react,
            wake=self.wake,
            stir=self._active.set,
            led=lambda: self._effects.spawn(guard_effect(self._families.end_orphans())),
        )

    # -- what the server calls
    # ------------------------------------------------------------------------------------

    def submitted(self, runs: Sequence[Run]) -> None:
        """These were made just now, through this server."""
        self._launcher.remember(runs)
        self.wake()

    async def change(self, before: Run, after: Run, event: RunEvent) -> None:
        """A run is to be otherwise than it was. Raises Conflict, NotFound."""
        await self._cluster.change(before, after, event)
        self._launcher.forget([before.id])
        self._changed(before.id)
        self.wake()

    def wake(self) -> None:
        """Something waits, or something became free: schedule soon."""
        self._decided.clear()
        self._wake.set()

    async def wait_planned(self, timeout_s: float) -> bool:
        """Wait for a scheduling turn that begins after this call; False when none ended within
        `timeout_s`."""
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

    async def snapshot(self) -> Snapshot:
        """What there is now, with what this server gives those who make room."""
        return self._turns.as_shown(await self._cluster.snapshot(now=self._clock.now()))

    async def stop(
        self, run: RunId, *, grace: timedelta = DEFAULT_GRACE, at_safe_point: bool = False
    ) -> None:
        """End a run: at once when it waits, else its processes are asked and, after `grace`, killed.
        at_safe_point: a script that has safe points leaves at its next one, with a checkpoint. Raises
        NotFound."""
        before = (await self._runs.get(run)).attempt
        with self._endings.speaking_for(None if before is None else before.id):
            try:
                recorded = await self._cluster.request_stop(run, now=self._clock.now())
            except StorageFull:
                if before is None or not AttemptPhase(before.phase).live:
                    raise
                # What fills the disk may be the run itself: its processes end first, the request is written
                # when that made room.
                self._endings.ask_within(before.id, grace, preempt=at_safe_point)
                recorded = await self._write_stop(run, within=grace + FULL_DISK_WAIT)
            found = await self._runs.get(run)
            if found.attempt is not None and AttemptPhase(found.attempt.phase).live:
                self._endings.ask_within(found.attempt.id, grace, preempt=at_safe_point)
        await self._react(recorded)
        # it waited: no attempt ends, the run does
        if found.phase.final and recorded.changed and not recorded.ended:
            self.wake()
            self._tell_ended([run])

    async def _write_stop(self, run: RunId, *, within: timedelta) -> Recorded:
        """Raises StorageFull when there is no room for that long."""
        deadline = self._clock.now() + within
        while True:
            await self._clock.sleep_until(self._clock.now() + RETRY_AFTER)
            try:
                return await self._cluster.request_stop(run, now=self._clock.now())
            except StorageFull:
                if self._clock.now() >= deadline:
                    raise

    def ends(self, attempt: AttemptId) -> bool:
        """Whether it was asked to end, or is over."""
        return attempt in self._endings or attempt not in self._watch.live

    async def preempt(self, run: RunId, reason: str) -> None:
        """Ask a live run to save a checkpoint and make room; it waits again afterwards.
        One that is not live is left alone. Raises NotFound."""
        await self._react(await self._cluster.request_preempt(run, reason, now=self._clock.now()))
        found = await self._runs.get(run)
        if (
            found.attempt is not None
            and found.attempt.phase == AttemptPhase.STOPPING
            and not found.stop_requested
        ):
            self._endings.ask(found.attempt.id, preempt=True)

    async def hear(self, attempt: AttemptId, status: ReplicaStatus) -> bool:
        """What a replica says of itself; whether it should end.
        Late news of an old attempt changes nothing."""
        if self._watch.said.get((attempt, status.rank)) != status:
            if status.exit is not None and status.exit.kind is ExitKind.NODE_FAULT:
                await self._glance()  # before its run waits again: its node may be out of service now
            recorded = await self._cluster.record_status(
                AttemptStatus(attempt, (status,)), now=self._clock.now()
            )
            self._watch.said[attempt, status.rank] = status
            await self._react(recorded)
            if (
                status.exit is not None
                and attempt in self._watch.live
                and await self._ends_gang(attempt, status.exit, status.rank)
            ):
                self._endings.ask(attempt, preempt=status.exit.kind is ExitKind.PREEMPTED)
        if attempt not in self._watch.live:
            await self._watch.look_what_lives()
        if attempt not in self._watch.live:
            return True
        return attempt in self._endings and await self._ends_now(attempt, status.rank)

    async def _ends_gang(self, attempt: AttemptId, exit: Exit, rank: int) -> bool:
        """Whether the rest of a gang ends because this replica did: it ended badly, or was the last essential
        one."""
        run = await self._runs.get(split_attempt(attempt)[0])
        optional = run.optional_ranks()
        if not exit.ok:
            return rank not in optional
        return bool(optional) and await self._essential_ended(attempt, run)

    async def _ends_now(self, attempt: AttemptId, rank: int) -> bool:
        """Whether a replica of an attempt that should end is to end now: those that are not essential do
        after the others."""
        run = await self._runs.get(split_attempt(attempt)[0])
        return rank not in run.optional_ranks() or await self._essential_ended(attempt, run)

    async def _essential_ended(self, attempt: AttemptId, run: Run) -> bool:
        ended = {one.rank for one in (await self._cluster.replicas(attempt)).replicas if one.exit is not None}
        size = sum(run.attempt.counts) if run.attempt is not None else run.spec.size
        return ended.issuperset(set(range(size)) - run.optional_ranks())

    def preempts(self, attempt: AttemptId) -> bool:
        """Whether an attempt that should end is to save a checkpoint first, because it makes room for
        another."""
        return self._endings.preempts(attempt)

    def grace(self, attempt: AttemptId) -> timedelta:
        """How long an attempt that should end may take."""
        return self._endings.grace(attempt)

    async def look(self) -> None:
        """Look at the engine now: something may have changed of which nobody tells, such as a node that is
        gone."""
        await guard_step(self._watch.look)

    async def give_up_engine(self, engine: str, reason: str) -> Sequence[RunId]:
        """Declare lost what is live with the engine of a server that is gone for good: these runs wait again,
        or end where that was asked for. Its nodes are not ready any more. A server that comes back with it
        ends what it still finds. Returns the runs."""
        now = self._clock.now()
        await self._react(await self._cluster.record(engine, Observation((), ()), now=now, launched=()))
        snapshot = await self._cluster.snapshot(now=now)
        lost: list[RunId] = []
        for running in snapshot.running:
            if snapshot.engine_of(running) == engine:
                await self._react(await self._cluster.fail_launch(running.attempt, reason, now=now))
                lost.append(RunId(running.gang.id))
        return lost

    async def resign(self) -> None:
        """This server ends on purpose: another one may decide at once."""
        await self._leader.resign()

    # -- loops
    # ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Begins by looking at what the engine has, so that what ran before goes on."""
        self._active.set()
        self.wake()
        try:
            await guard_step(self._watch.look)
            self.looked.set()
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._schedule_loop())
                loops.create_task(self._observe_loop())
                if self._shared:
                    loops.create_task(self._follow_others_loop())
                if isinstance(self._engine, TellsChanges):
                    loops.create_task(self._listen_loop(self._engine))
        finally:
            await self._effects.cancel()
            await self._launcher.cancel()

    async def _follow_others_loop(self) -> None:
        """What another server changed (a submission, a queue, a node) is decided by the one that leads."""
        while True:
            await self._clock.sleep_until(self._clock.now() + FOLLOW_EVERY)
            if self._leader.leads:
                await guard_step(self._follow_others)

    async def _follow_others(self) -> None:
        version = await self._cluster.version()
        if version != self._version:
            self._version = version
            self._active.set()
            self.wake()

    async def _schedule_loop(self) -> None:
        while True:
            if not self._wake.is_set():
                self._decided.set()
            await self._wake.wait()
            # What ended is being written down: to decide without it would be in vain, and in the way of
            # deciding with it.
            await _briefly(self._glanced)
            self._wake.clear()
            self._freed.clear()
            began = self._clock.now()
            epoch = await self._leader.epoch()
            if epoch is None:
                self._wake.set()
                await self._clock.sleep_until(began + self._leader.retry_after)
                continue
            # it begins to decide: the server before has recorded that this one's nodes are not ready
            if epoch != self._watch.epoch:
                await guard_step(self._watch.look)
            if not await guard_step(self._turn):
                self._wake.set()
                await self._clock.sleep_until(self._clock.now() + RETRY_AFTER)
                continue
            ended = self._clock.now()
            if ended > began + PAUSE_AFTER:
                await self._rest(ended, ended - began)

    async def _rest(self, ended: datetime, took: timedelta) -> None:
        """What becomes free is worth the next turn before the time is up: at once where this one found
        something to do, else a little later."""
        pause = PAUSE
        if not self._turns.fruitful:
            await self._clock.sleep_until(ended + min(took * PAUSE, LONGEST_PAUSE))
            pause = FRUITLESS_PAUSE
        resting = asyncio.ensure_future(self._clock.sleep_until(ended + min(took * pause, LONGEST_PAUSE)))
        resting.add_done_callback(lambda _: self._freed.set())
        try:
            await self._freed.wait()
        finally:
            resting.cancel()

    async def _observe_loop(self) -> None:
        while True:
            await self._active.wait()
            await self._glance_until(
                asyncio.ensure_future(self._clock.sleep_until(self._clock.now() + self._observe_every))
            )
            self._active.clear()
            done = await guard_step(self._watch.look)
            if not done or self._launcher:
                self._active.set()

    async def _glance_until(self, time: asyncio.Future[None]) -> None:
        """Look at what the engine tells of, until it is time to look at everything."""
        time.add_done_callback(lambda _: self._told.set())
        try:
            while True:
                await self._told.wait()
                self._told.clear()
                if time.done():
                    return
                await self._glance()
        finally:
            time.cancel()

    async def _glance(self) -> None:
        self._glanced.clear()
        await guard_step(self._watch.glance)
        self._glanced.set()

    async def _listen_loop(self, engine: TellsChanges) -> None:
        while True:
            await engine.wait_changed()
            self._active.set()
            self._told.set()

    # -- scheduling
    # -----------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        planned = self._turns.begin()
        self._quiet.begin()
        try:
            thought = await self._turns.think()
            if thought is not None:
                reading = self._launcher.read_ahead(thought[1].place)
                async with aclosing(self._turns.commit(*thought)) as portions:
                    async for committed in portions:
                        self._follow(committed, reading)
        except BaseException:
            self._turns.again(planned)
            raise
        finally:
            self._quiet.end()
        if self._turns.cut:
            self._turns.again(planned)
            self.wake()
        else:
            await self._turns.tell(planned)

    def _follow(self, committed: Committed, reading: Reading | None) -> None:
        if committed.started:
            self._watch.live.update(attempt for attempt, _ in committed.started)
            self._active.set()
            self._launcher.launch(committed.started, reading)
        for attempt in committed.preempted:
            self._endings.ask(attempt, preempt=True)

    # -- what follows
    # ---------------------------------------------------------------------------------------------

    async def _react(self, recorded: Recorded) -> None:
        for run in recorded.changed:
            self._changed(run)
        for ended in recorded.ended:
            self._watch.live.discard(ended.attempt)
            self._endings.ended(ended.attempt)
        if recorded.ended:
            self._active.set()  # the engine is to forget them
            self._tell_ended([ended.run for ended in recorded.ended])
        if recorded.ended or recorded.requeued:
            self._freed.set()
            self.wake()

    def _tell_ended(self, ended: Sequence[RunId]) -> None:
        """Those that end while others are told of are told of together."""
        self._launcher.forget(ended)
        self._ended.extend(ended)
        if self._telling is None or self._telling.done():
            self._telling = self._effects.spawn(guard_effect(self._tell_all_ended()))

    async def _tell_all_ended(self) -> None:
        while self._ended:
            await _briefly(self._decided)  # who takes their place comes before those who are only told
            ended, self._ended = self._ended, []
            await guard_effect(self._families.ended(ended))
            if self._on_ended is not None:
                found = (await read_runs(self._runs, ended)).values()
                await asyncio.gather(*(guard_effect(self._on_ended(run)) for run in found if run.phase.final))


async def _briefly(event: asyncio.Event) -> None:
    """Wait for it, but not for an engine or a turn that takes long: what is said of them may wait, it is not
    to be held up."""
    if event.is_set():
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(LONGEST_WAIT_S):
            await event.wait()

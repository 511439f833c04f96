"""The loops of the controller: place and launch waiting runs, observe live runs, clean up ended runs.

The policy and the store decide; the controller has the effects and the only clock. It is level-triggered: a
lost message costs one tick, and a new controller reads the whole state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import datetime, timedelta

from hopyard.controller.background import BackgroundEffects, run_logging_errors, run_step_logging_errors
from hopyard.controller.batch_reads import read_runs
from hopyard.controller.gc_guard import GcGuard
from hopyard.controller.launch_builder import LaunchBuilder
from hopyard.controller.launcher import Launcher, RunReadTask
from hopyard.controller.leader_election import LEASE_TTL, Leadership
from hopyard.controller.reconciler import Reconciler
from hopyard.controller.scheduling_loop import HOLDS_INTERVAL, MAX_HOLDS_PAUSE, CommittedBatch, SchedulingLoop
from hopyard.controller.stop_requests import DEFAULT_GRACE, PREEMPT_GRACE, StopRequests
from hopyard.controller.trial_cleanup import TrialCleanup
from hopyard.domain.attempt import AttemptPhase, AttemptStatus, Exit, ExitKind, ReplicaStatus
from hopyard.domain.cluster import Observation, Plan, Snapshot
from hopyard.domain.ids import AttemptId, RunId, Version, split_attempt
from hopyard.domain.run import Run, RunEvent
from hopyard.errors import StorageFull
from hopyard.interfaces.change_notifier import ChangeNotifier
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore, RecordResult
from hopyard.interfaces.engine import Engine
from hopyard.interfaces.policy import SchedulingPolicy, StartForecast
from hopyard.interfaces.run_store import RunStore

OBSERVE_INTERVAL = timedelta(seconds=1)
STORE_RETRY_INTERVAL = timedelta(seconds=1)
VERSION_POLL_INTERVAL = timedelta(seconds=1)
FULL_DISK_TIMEOUT = timedelta(seconds=10)  # beyond a run's grace, for the space that its end makes
# Parts of a turn's time in which nothing is decided, where it took long: what is submitted meanwhile is
# decided together, and a long queue on a full cluster leaves the server to requests. What becomes free may
# end them sooner (see `_rest`).
CYCLE_PAUSE_FACTOR, IDLE_CYCLE_PAUSE_FACTOR = 0.25, 1.0
PAUSE_THRESHOLD = timedelta(milliseconds=20)
MAX_OBSERVATION_WAIT_S = 0.1  # that a turn and what ended wait for each other


class Controller:
    """One per server.

    on_changed: told of every run whose phase, hold or exit may be another now. on_ended: awaited for every
    run that became final. observe_interval: how often the engine is asked while attempts are live; never
    while none is. One that `ChangeNotifier` is asked at once when it does. holder: this server's name in the
    lease; it may be that of an earlier one where it is certain that it has ended. preempt_grace: how long a
    run may take to save a checkpoint when it is asked to make room. holds_interval: how often at most it is
    written down why runs wait, None for never. shared_database: whether other servers change the store, too.
    forecast: says when runs that wait probably start, None where that is not to be known.
    """

    def __init__(
        self,
        *,
        cluster: ClusterStore,
        runs: RunStore,
        engine: Engine,
        policy: SchedulingPolicy,
        clock: Clock,
        launch_builder: LaunchBuilder,
        on_changed: Callable[[RunId], None] = lambda _: None,
        on_ended: Callable[[Run], Awaitable[None]] | None = None,
        observe_interval: timedelta = OBSERVE_INTERVAL,
        holder: str = "server",
        lease: timedelta = LEASE_TTL,
        preempt_grace: timedelta = PREEMPT_GRACE,
        holds_interval: timedelta | None = HOLDS_INTERVAL,
        shared_database: bool = False,
        forecast: StartForecast | None = None,
    ) -> None:
        self._cluster, self._runs, self._engine, self._clock = cluster, runs, engine, clock
        self._on_changed, self._on_ended, self._observe_interval = on_changed, on_ended, observe_interval
        self._cycle_requested, self._capacity_freed, self._observation_requested, self._changes_received = (
            asyncio.Event() for _ in range(4)
        )
        self._observation_recorded = asyncio.Event()  # not set while it is recorded what the engine tells of
        self._observation_recorded.set()
        self._no_cycle_requested = asyncio.Event()  # not set while somebody waits for a turn
        # set once `run` has looked at the engine for the first time: its nodes are known
        self.first_reconcile_done = asyncio.Event()
        self._background = BackgroundEffects()
        self._ended_runs: list[RunId] = []  # of which is to be told
        self._ended_task: asyncio.Task[None] | None = None
        self._leadership = Leadership(cluster, clock, holder=holder, ttl=lease)
        self._stop_requests = StopRequests(
            engine,
            clock,
            self._background,
            on_request=self._observation_requested.set,
            preempt_grace=preempt_grace,
        )
        self._launcher = Launcher(
            cluster=cluster,
            runs=runs,
            engine=engine,
            clock=clock,
            launch_builder=launch_builder,
            stop_requests=self._stop_requests,
            on_recorded=self._apply_recorded,
            observe_now=self._record_observation,
        )
        self._scheduling_loop = SchedulingLoop(
            cluster,
            policy,
            clock,
            self._leadership,
            self._background,
            engine=engine.name,
            on_changed=on_changed,
            request_cycle=self.request_cycle,
            holds_interval=holds_interval,
            preempt_grace=preempt_grace,
            forecast=forecast,
        )
        self._gc_guard = GcGuard()
        self._shared_database, self._version = shared_database, Version(-1)
        self._trial_cleanup = TrialCleanup(runs, self.stop)
        self._reconciler = Reconciler(
            cluster,
            engine,
            clock,
            self._leadership,
            self._launcher,
            self._stop_requests,
            on_recorded=self._apply_recorded,
            request_cycle=self.request_cycle,
            request_observation=self._observation_requested.set,
            on_elected=lambda: self._background.spawn(run_logging_errors(self._trial_cleanup.stop_orphans())),
        )

    # -- what the server calls -------------------------------------------------------------------------------

    def add_submitted(self, runs: Sequence[Run]) -> None:
        """These were made just now, through this server."""
        self._launcher.cache_runs(runs)
        self.request_cycle()

    async def update_run(self, before: Run, after: Run, event: RunEvent) -> None:
        """A run is to be otherwise than it was. Raises Conflict, NotFound."""
        await self._cluster.update_run(before, after, event)
        self._launcher.drop_cached_runs([before.id])
        self._on_changed(before.id)
        self.request_cycle()

    def request_cycle(self) -> None:
        """Something waits, or something became free: schedule soon."""
        self._no_cycle_requested.clear()
        self._cycle_requested.set()

    async def wait_for_cycle(self, timeout_s: float) -> bool:
        """Wait for a scheduling turn that begins after this call; False when none ended within
        `timeout_s`."""
        waiting = self._scheduling_loop.next_cycle()
        self.request_cycle()
        try:
            async with asyncio.timeout(timeout_s):
                await waiting
        except TimeoutError:
            return False
        return True

    @property
    def latest_plan(self) -> tuple[Snapshot, Plan] | None:
        """What was decided last, and on what; None before the first turn."""
        return self._scheduling_loop.latest_plan

    async def snapshot(self) -> Snapshot:
        """What there is now, with what this server gives those who make room."""
        return self._scheduling_loop.with_scheduler_view(await self._cluster.snapshot(now=self._clock.now()))

    async def stop(
        self, run: RunId, *, grace: timedelta = DEFAULT_GRACE, at_safe_point: bool = False
    ) -> None:
        """End a run: at once when it waits, else its processes are asked and, after `grace`, killed.
        at_safe_point: a script that has safe points leaves at its next one, with a checkpoint. Raises
        NotFound."""
        before = (await self._runs.get(run)).attempt
        with self._stop_requests.recording(None if before is None else before.id):
            try:
                recorded = await self._cluster.request_stop(run, now=self._clock.now())
            except StorageFull:
                if before is None or not AttemptPhase(before.phase).is_live:
                    raise
                # What fills the disk may be the run itself: its processes end first, the request is written
                # when that made room.
                self._stop_requests.request_stop_within(before.id, grace, preempt=at_safe_point)
                recorded = await self._record_stop_on_full_disk(run, retry_for=grace + FULL_DISK_TIMEOUT)
            found = await self._runs.get(run)
            if found.attempt is not None and AttemptPhase(found.attempt.phase).is_live:
                self._stop_requests.request_stop_within(found.attempt.id, grace, preempt=at_safe_point)
        await self._apply_recorded(recorded)
        # it waited: no attempt ends, the run does
        if found.phase.is_final and recorded.changed and not recorded.ended:
            self.request_cycle()
            self._notify_ended([run])

    async def _record_stop_on_full_disk(self, run: RunId, *, retry_for: timedelta) -> RecordResult:
        """Raises StorageFull when there is no room for that long."""
        deadline = self._clock.now() + retry_for
        while True:
            await self._clock.sleep_until(self._clock.now() + STORE_RETRY_INTERVAL)
            try:
                return await self._cluster.request_stop(run, now=self._clock.now())
            except StorageFull:
                if self._clock.now() >= deadline:
                    raise

    def should_end(self, attempt: AttemptId) -> bool:
        """Whether it was asked to end, or is over."""
        return attempt in self._stop_requests or attempt not in self._reconciler.live_attempts

    async def preempt(self, run: RunId, reason: str) -> None:
        """Preempts a live run: it saves a checkpoint, ends and is requeued.
        A run that is not live is unchanged. Raises NotFound."""
        await self._apply_recorded(await self._cluster.request_preempt(run, reason, now=self._clock.now()))
        found = await self._runs.get(run)
        if (
            found.attempt is not None
            and found.attempt.phase == AttemptPhase.STOPPING
            and not found.stop_requested
        ):
            self._stop_requests.request_stop(found.attempt.id, preempt=True)

    async def record_status(self, attempt: AttemptId, status: ReplicaStatus) -> bool:
        """What a replica says of itself; whether it should end.
        Late news of an old attempt changes nothing."""
        if self._reconciler.last_statuses.get((attempt, status.rank)) != status:
            if status.exit is not None and status.exit.kind is ExitKind.NODE_FAULT:
                # before its run waits again: its node may be out of service now
                await self._record_observation()
            recorded = await self._cluster.record_status(
                AttemptStatus(attempt, (status,)), now=self._clock.now()
            )
            self._reconciler.last_statuses[attempt, status.rank] = status
            await self._apply_recorded(recorded)
            if (
                status.exit is not None
                and attempt in self._reconciler.live_attempts
                and await self._should_end_gang(attempt, status.exit, status.rank)
            ):
                self._stop_requests.request_stop(attempt, preempt=status.exit.kind is ExitKind.PREEMPTED)
        if attempt not in self._reconciler.live_attempts:
            await self._reconciler.refresh_live_attempts()
        if attempt not in self._reconciler.live_attempts:
            return True
        return attempt in self._stop_requests and await self._should_end_replica(attempt, status.rank)

    async def _should_end_gang(self, attempt: AttemptId, exit: Exit, rank: int) -> bool:
        """Whether the rest of a gang ends because this replica did: it ended badly, or was the last essential
        one."""
        run = await self._runs.get(split_attempt(attempt)[0])
        optional = run.optional_ranks()
        if not exit.is_success:
            return rank not in optional
        return bool(optional) and await self._all_essential_ended(attempt, run)

    async def _should_end_replica(self, attempt: AttemptId, rank: int) -> bool:
        """Whether a replica of an attempt that should end is to end now: those that are not essential do
        after the others."""
        run = await self._runs.get(split_attempt(attempt)[0])
        return rank not in run.optional_ranks() or await self._all_essential_ended(attempt, run)

    async def _all_essential_ended(self, attempt: AttemptId, run: Run) -> bool:
        ended = {one.rank for one in (await self._cluster.replicas(attempt)).replicas if one.exit is not None}
        size = sum(run.attempt.counts) if run.attempt is not None else run.spec.size
        return ended.issuperset(set(range(size)) - run.optional_ranks())

    def is_preempted(self, attempt: AttemptId) -> bool:
        """Whether an attempt that should end is to save a checkpoint first, because it makes room for
        another."""
        return self._stop_requests.is_preempted(attempt)

    def stop_grace(self, attempt: AttemptId) -> timedelta:
        """How long an attempt that should end may take."""
        return self._stop_requests.grace(attempt)

    async def observe_now(self) -> None:
        """Look at the engine now: something may have changed of which nobody tells, such as a node that is
        gone."""
        await run_step_logging_errors(self._reconciler.reconcile)

    async def mark_engine_lost(self, engine: str, reason: str) -> Sequence[RunId]:
        """Declare lost what is live with the engine of a server that is gone for good: these runs wait again,
        or end where that was asked for. Its nodes are not ready any more. A server that comes back with it
        ends what it still finds. Returns the runs."""
        now = self._clock.now()
        await self._apply_recorded(
            await self._cluster.record_observation(engine, Observation((), ()), now=now, launched=())
        )
        snapshot = await self._cluster.snapshot(now=now)
        lost: list[RunId] = []
        for running in snapshot.running:
            if snapshot.engine_of(running) == engine:
                await self._apply_recorded(await self._cluster.fail_launch(running.attempt, reason, now=now))
                lost.append(RunId(running.gang.id))
        return lost

    async def release_leadership(self) -> None:
        """Releases the leadership at shutdown, so that another server can decide at once."""
        await self._leadership.release()

    # -- loops -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Begins by looking at what the engine has, so that what ran before goes on."""
        self._observation_requested.set()
        self.request_cycle()
        try:
            await run_step_logging_errors(self._reconciler.reconcile)
            self.first_reconcile_done.set()
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._schedule_loop())
                loops.create_task(self._observe_loop())
                if self._shared_database:
                    loops.create_task(self._poll_version_loop())
                if isinstance(self._engine, ChangeNotifier):
                    loops.create_task(self._wait_for_changes_loop(self._engine))
        finally:
            await self._background.cancel()
            await self._launcher.cancel()

    async def _poll_version_loop(self) -> None:
        """What another server changed (a submission, a queue, a node) is decided by the one that leads."""
        while True:
            await self._clock.sleep_until(self._clock.now() + VERSION_POLL_INTERVAL)
            if self._leadership.is_leader:
                await run_step_logging_errors(self._poll_version)

    async def _poll_version(self) -> None:
        version = await self._cluster.version()
        if version != self._version:
            self._version = version
            self._observation_requested.set()
            self.request_cycle()

    async def _schedule_loop(self) -> None:
        while True:
            if not self._cycle_requested.is_set():
                self._no_cycle_requested.set()
            await self._cycle_requested.wait()
            # What ended is being written down: to decide without it would be in vain, and in the way of
            # deciding with it.
            await _wait_at_most(self._observation_recorded)
            self._cycle_requested.clear()
            self._capacity_freed.clear()
            began = self._clock.now()
            epoch = await self._leadership.acquire_epoch()
            if epoch is None:
                self._cycle_requested.set()
                await self._clock.sleep_until(began + self._leadership.retry_after)
                continue
            # it begins to decide: the server before has recorded that this one's nodes are not ready
            if epoch != self._reconciler.reconciled_epoch:
                await run_step_logging_errors(self._reconciler.reconcile)
            if not await run_step_logging_errors(self._run_cycle):
                self._cycle_requested.set()
                await self._clock.sleep_until(self._clock.now() + STORE_RETRY_INTERVAL)
                continue
            ended = self._clock.now()
            if ended > began + PAUSE_THRESHOLD:
                await self._pause_between_cycles(ended, ended - began)

    async def _pause_between_cycles(self, ended_at: datetime, duration: timedelta) -> None:
        """What becomes free is worth the next turn before the time is up: at once where this one found
        something to do, else a little later."""
        pause = CYCLE_PAUSE_FACTOR
        if not self._scheduling_loop.made_progress:
            await self._clock.sleep_until(ended_at + min(duration * CYCLE_PAUSE_FACTOR, MAX_HOLDS_PAUSE))
            pause = IDLE_CYCLE_PAUSE_FACTOR
        resting = asyncio.ensure_future(
            self._clock.sleep_until(ended_at + min(duration * pause, MAX_HOLDS_PAUSE))
        )
        resting.add_done_callback(lambda _: self._capacity_freed.set())
        try:
            await self._capacity_freed.wait()
        finally:
            resting.cancel()

    async def _observe_loop(self) -> None:
        while True:
            await self._observation_requested.wait()
            await self._observe_until(
                asyncio.ensure_future(self._clock.sleep_until(self._clock.now() + self._observe_interval))
            )
            self._observation_requested.clear()
            done = await run_step_logging_errors(self._reconciler.reconcile)
            if not done or self._launcher:
                self._observation_requested.set()

    async def _observe_until(self, deadline: asyncio.Future[None]) -> None:
        """Look at what the engine tells of, until it is time to look at everything."""
        deadline.add_done_callback(lambda _: self._changes_received.set())
        try:
            while True:
                await self._changes_received.wait()
                self._changes_received.clear()
                if deadline.done():
                    return
                await self._record_observation()
        finally:
            deadline.cancel()

    async def _record_observation(self) -> None:
        self._observation_recorded.clear()
        await run_step_logging_errors(self._reconciler.record_changes)
        self._observation_recorded.set()

    async def _wait_for_changes_loop(self, engine: ChangeNotifier) -> None:
        while True:
            await engine.wait_for_change()
            self._observation_requested.set()
            self._changes_received.set()

    # -- scheduling ------------------------------------------------------------------------------------------

    async def _run_cycle(self) -> None:
        planned = self._scheduling_loop.begin_cycle()
        self._gc_guard.pause()
        try:
            thought = await self._scheduling_loop.make_plan()
            if thought is not None:
                reading = self._launcher.prefetch_runs(thought[1].place)
                async with aclosing(self._scheduling_loop.commit(*thought)) as portions:
                    async for committed in portions:
                        self._start_committed(committed, reading)
        except BaseException:
            self._scheduling_loop.requeue_waiters(planned)
            raise
        finally:
            self._gc_guard.resume()
        if self._scheduling_loop.limit_reached:
            self._scheduling_loop.requeue_waiters(planned)
            self.request_cycle()
        else:
            await self._scheduling_loop.notify_waiters(planned)

    def _start_committed(self, committed: CommittedBatch, reading: RunReadTask | None) -> None:
        if committed.started:
            self._reconciler.live_attempts.update(attempt for attempt, _ in committed.started)
            self._observation_requested.set()
            self._launcher.launch(committed.started, reading)
        for attempt in committed.preempted:
            self._stop_requests.request_stop(attempt, preempt=True)

    # -- what follows ----------------------------------------------------------------------------------------

    async def _apply_recorded(self, recorded: RecordResult) -> None:
        for run in recorded.changed:
            self._on_changed(run)
        for ended in recorded.ended:
            self._reconciler.live_attempts.discard(ended.attempt)
            self._stop_requests.discard(ended.attempt)
        if recorded.ended:
            self._observation_requested.set()  # the engine is to forget them
            self._notify_ended([ended.run for ended in recorded.ended])
        if recorded.ended or recorded.requeued:
            self._capacity_freed.set()
            self.request_cycle()

    def _notify_ended(self, ended: Sequence[RunId]) -> None:
        """Those that end while others are told of are told of together."""
        self._launcher.drop_cached_runs(ended)
        self._ended_runs.extend(ended)
        if self._ended_task is None or self._ended_task.done():
            self._ended_task = self._background.spawn(run_logging_errors(self._notify_all_ended()))

    async def _notify_all_ended(self) -> None:
        while self._ended_runs:
            # who takes their place comes before those who are only told
            await _wait_at_most(self._no_cycle_requested)
            ended, self._ended_runs = self._ended_runs, []
            await run_logging_errors(self._trial_cleanup.stop_trials_of(ended))
            if self._on_ended is not None:
                found = (await read_runs(self._runs, ended)).values()
                await asyncio.gather(
                    *(run_logging_errors(self._on_ended(run)) for run in found if run.phase.is_final)
                )


async def _wait_at_most(event: asyncio.Event) -> None:
    """Wait for it, but not for an engine or a turn that takes long: what is said of them may wait, it is not
    to be held up."""
    if event.is_set():
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(MAX_OBSERVATION_WAIT_S):
            await event.wait()

"""The loops of the controller: place and launch waiting runs, observe live runs, clean up ended runs.

The policy and the store decide. The controller has the effects and the only clock. It is level-triggered: a
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
from hopyard.controller.launcher import GangLauncher, RunReadTask
from hopyard.controller.leader_election import LEASE_TTL, Leadership
from hopyard.controller.reconciler import Reconciler
from hopyard.controller.scheduling_loop import HOLDS_INTERVAL, MAX_HOLDS_PAUSE, CommittedBatch, SchedulingLoop
from hopyard.controller.stop_requests import PREEMPT_GRACE, StopRequests
from hopyard.controller.trial_cleanup import TrialCleanup
from hopyard.domain.attempt import AttemptPhase, AttemptStatus, Exit, ExitKind, ReplicaStatus
from hopyard.domain.cluster import Observation, Plan, Snapshot
from hopyard.domain.ids import AttemptId, RunId, Version, split_attempt
from hopyard.domain.replica import DEFAULT_STOP_ORDER, StopOrder
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
FULL_DISK_TIMEOUT = timedelta(seconds=10)  # beyond a run's grace: its end may free space
# The pause after a long cycle, as a multiple of the cycle's duration. Runs submitted meanwhile are scheduled
# together, and a long queue on a full cluster leaves time for requests. Freed capacity may end the pause
# early (see `_pause_between_cycles`).
CYCLE_PAUSE_FACTOR, IDLE_CYCLE_PAUSE_FACTOR = 0.25, 1.0
PAUSE_THRESHOLD = timedelta(milliseconds=20)
MAX_OBSERVATION_WAIT_S = 0.1  # a cycle and the recording of ended attempts wait so long for each other


class Controller:
    """Schedules, launches, observes and stops runs. One per server.

    on_changed: called for every run whose phase, hold or exit may have changed. on_ended: awaited for every
    run that became final. observe_interval: how often the engine is polled while attempts are live, never
    while none is; an engine that is a `ChangeNotifier` is also polled at once when it reports a change.
    holder: this server's name in the lease; it may be the name of an earlier server that has certainly ended.
    preempt_grace: the time that a preempted run has to save a checkpoint. holds_interval: the minimum
    interval between records of hold reasons, None to record none. shared_database: whether other servers
    change the store, too. forecast: estimates when waiting runs start, None for no estimates.
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
        self._observation_recorded = asyncio.Event()  # cleared while changes of the engine are being recorded
        self._observation_recorded.set()
        self._no_cycle_requested = asyncio.Event()  # cleared while a cycle is requested
        # set once `run` has observed the engine for the first time: its nodes are known
        self.first_reconcile_done = asyncio.Event()
        self._background = BackgroundEffects()
        self._ended_runs: list[RunId] = []  # `on_ended` is still to be called for these
        self._ended_task: asyncio.Task[None] | None = None
        self._leadership = Leadership(cluster, clock, holder=holder, ttl=lease)
        self._stop_requests = StopRequests(
            engine,
            clock,
            self._background,
            on_request=self._observation_requested.set,
            preempt_grace=preempt_grace,
        )
        self._launcher = GangLauncher(
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
            record_unstored=runs.record_unstored,
            on_recorded=self._apply_recorded,
            request_cycle=self.request_cycle,
            request_observation=self._observation_requested.set,
            on_elected=lambda: self._background.spawn(run_logging_errors(self._trial_cleanup.stop_orphans())),
        )

    # -- what the server calls -------------------------------------------------------------------------------

    def add_submitted(self, runs: Sequence[Run]) -> None:
        """Adds runs that were just submitted through this server, and requests a cycle."""
        self._launcher.cache_runs(runs)
        self.request_cycle()

    async def update_run(self, before: Run, after: Run, event: RunEvent) -> None:
        """Replaces a run's record. Raises Conflict, NotFound."""
        await self._cluster.update_run(before, after, event)
        self._launcher.drop_cached_runs([before.id])
        self._on_changed(before.id)
        self.request_cycle()

    def request_cycle(self) -> None:
        """Requests a scheduling cycle, because a run waits or capacity was freed."""
        self._no_cycle_requested.clear()
        self._cycle_requested.set()

    async def wait_for_cycle(self, timeout_s: float) -> bool:
        """Waits for the end of a scheduling cycle that begins after this call. Returns False when none ended
        within `timeout_s` seconds."""
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
        """The latest plan and its snapshot; None before the first cycle."""
        return self._scheduling_loop.latest_plan

    async def snapshot(self) -> Snapshot:
        """Returns a current snapshot, with this server's view of nodes and its preemption grace."""
        return self._scheduling_loop.with_scheduler_view(await self._cluster.snapshot(now=self._clock.now()))

    async def stop(self, run: RunId, order: StopOrder = DEFAULT_STOP_ORDER) -> None:
        """Stops a run. A waiting run ends at once; the processes of a live run get the order. Raises
        NotFound."""
        attempt = (await self._runs.get(run)).attempt
        with self._stop_requests.recording(None if attempt is None else attempt.id):
            try:
                recorded = await self._cluster.request_stop(run, order, now=self._clock.now())
            except StorageFull:
                if attempt is None or not AttemptPhase(attempt.phase).is_live:
                    raise
                # The run itself may fill the disk. Its processes end first, and the request is recorded
                # when that has freed space.
                self._stop_requests.apply_order(attempt.id, order)
                recorded = await self._record_stop_on_full_disk(run, order)
            current = await self._runs.get(run)
            if current.attempt is not None and AttemptPhase(current.attempt.phase).is_live:
                self._stop_requests.apply_order(current.attempt.id, order)
        await self._apply_recorded(recorded)
        # the run was waiting: it ends without an end of an attempt
        if current.phase.is_final and recorded.changed and not recorded.ended:
            self.request_cycle()
            self._notify_ended([run])

    async def _record_stop_on_full_disk(self, run: RunId, order: StopOrder) -> RecordResult:
        """Retries to record the stop. Raises StorageFull when the disk is still full after the grace."""
        deadline = self._clock.now() + timedelta(seconds=order.grace_s) + FULL_DISK_TIMEOUT
        while True:
            await self._clock.sleep_until(self._clock.now() + STORE_RETRY_INTERVAL)
            try:
                return await self._cluster.request_stop(run, order, now=self._clock.now())
            except StorageFull:
                if self._clock.now() >= deadline:
                    raise

    def should_end(self, attempt: AttemptId) -> bool:
        """Returns whether the attempt was asked to stop, or has ended."""
        return attempt in self._stop_requests or attempt not in self._reconciler.live_attempts

    async def preempt(self, run: RunId, reason: str, *, hold_by: str | None = None) -> None:
        """Preempts a live run: it saves a checkpoint, ends and is requeued.

        hold_by: the user that holds it from then on. Without one, a run that is not live is unchanged. Raises
        NotFound; with a user also Conflict for a run that will not return to the queue.
        """
        now = self._clock.now()
        await self._apply_recorded(
            await self._cluster.request_preempt(run, reason, now=now)
            if hold_by is None
            else await self._cluster.hold_and_preempt(run, hold_by, reason, now=now)
        )
        current = await self._runs.get(run)
        if (
            current.attempt is not None
            and current.attempt.phase == AttemptPhase.STOPPING
            and not current.stop_requested
        ):
            self._stop_requests.request_stop(current.attempt.id, preempt=True)

    async def record_status(self, attempt: AttemptId, status: ReplicaStatus) -> bool:
        """Records the status that a replica reports. Returns whether the replica should end. A late report of
        an old attempt changes nothing."""
        if self._reconciler.last_statuses.get((attempt, status.rank)) != status:
            if status.exit is not None and status.exit.kind is ExitKind.NODE_FAULT:
                # before its run is requeued: its node may be unhealthy now
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
        """Returns whether the rest of a gang ends because this replica ended: it failed, or was the last
        essential replica."""
        run = await self._runs.get(split_attempt(attempt)[0])
        optional = run.optional_ranks()
        if not exit.is_success:
            if rank in run.service_ranks():
                return not await self._all_essential_ended(attempt, run)
            return rank not in optional
        return bool(optional) and await self._all_essential_ended(attempt, run)

    async def _should_end_replica(self, attempt: AttemptId, rank: int) -> bool:
        """Returns whether a replica of an ending attempt ends now. Replicas that are not essential end after
        the others."""
        run = await self._runs.get(split_attempt(attempt)[0])
        return rank not in run.optional_ranks() or await self._all_essential_ended(attempt, run)

    async def _all_essential_ended(self, attempt: AttemptId, run: Run) -> bool:
        ended = {
            replica.rank
            for replica in (await self._cluster.replicas(attempt)).replicas
            if replica.exit is not None
        }
        size = sum(run.attempt.counts) if run.attempt is not None else run.spec.size
        return ended.issuperset(set(range(size)) - run.optional_ranks())

    def stop_order(self, attempt: AttemptId) -> StopOrder:
        """Returns the order of an ending attempt."""
        return self._stop_requests.order(attempt)

    async def observe_now(self) -> None:
        """Observes the engine now, for a change that came without a notification, such as a removed node."""
        await run_step_logging_errors(self._reconciler.reconcile)

    async def mark_engine_lost(self, engine: str, reason: str) -> Sequence[RunId]:
        """Declares the live attempts of an engine lost, because its server is gone for good. Returns their
        runs.

        The runs are requeued, or end if a stop was requested. The engine's nodes are marked not ready. If the
        server comes back, it ends the attempts that it still finds.
        """
        now = self._clock.now()
        await self._apply_recorded(
            await self._cluster.record_observation(engine, Observation((), ()), now=now, launched=())
        )
        snapshot = await self._cluster.snapshot(now=now)
        lost_runs: list[RunId] = []
        for running in snapshot.running:
            if snapshot.engine_of(running) == engine:
                await self._apply_recorded(await self._cluster.fail_launch(running.attempt, reason, now=now))
                lost_runs.append(RunId(running.gang.id))
        return lost_runs

    async def release_leadership(self) -> None:
        """Releases the leadership at shutdown, so that another server can decide at once."""
        await self._leadership.release()

    # -- loops -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs the loops until cancelled. It observes the engine first, so that attempts of an earlier server
        continue."""
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
        """Requests a cycle when another server changed the store (a submission, a queue, a node), while this
        server leads."""
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
            # Ended attempts are being recorded. A plan without their capacity would be useless, and would
            # delay the plan that uses it.
            await _wait_at_most(self._observation_recorded)
            self._cycle_requested.clear()
            self._capacity_freed.clear()
            began = self._clock.now()
            epoch = await self._leadership.acquire_epoch()
            if epoch is None:
                self._cycle_requested.set()
                await self._clock.sleep_until(began + self._leadership.retry_after)
                continue
            # this server begins to lead: the previous leader has marked this server's nodes as not ready
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
        """Pauses after a long cycle. Freed capacity ends the pause early: at once if the cycle made progress,
        else after a short minimum pause."""
        pause_factor = CYCLE_PAUSE_FACTOR
        if not self._scheduling_loop.made_progress:
            await self._clock.sleep_until(ended_at + min(duration * CYCLE_PAUSE_FACTOR, MAX_HOLDS_PAUSE))
            pause_factor = IDLE_CYCLE_PAUSE_FACTOR
        pause_timer = asyncio.ensure_future(
            self._clock.sleep_until(ended_at + min(duration * pause_factor, MAX_HOLDS_PAUSE))
        )
        pause_timer.add_done_callback(lambda _: self._capacity_freed.set())
        try:
            await self._capacity_freed.wait()
        finally:
            pause_timer.cancel()

    async def _observe_loop(self) -> None:
        while True:
            await self._observation_requested.wait()
            await self._observe_until(
                asyncio.ensure_future(self._clock.sleep_until(self._clock.now() + self._observe_interval))
            )
            self._observation_requested.clear()
            succeeded = await run_step_logging_errors(self._reconciler.reconcile)
            if not succeeded or self._launcher:
                self._observation_requested.set()

    async def _observe_until(self, deadline: asyncio.Future[None]) -> None:
        """Records the changes that the engine reports, until it is time to reconcile everything."""
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
        waiters = self._scheduling_loop.begin_cycle()
        self._gc_guard.pause()
        try:
            decision = await self._scheduling_loop.make_plan()
            if decision is not None:
                read_task = self._launcher.prefetch_runs(decision[1].place)
                async with aclosing(self._scheduling_loop.commit(*decision)) as committed_batches:
                    async for batch in committed_batches:
                        self._start_committed(batch, read_task)
        except BaseException:
            self._scheduling_loop.requeue_waiters(waiters)
            raise
        finally:
            self._gc_guard.resume()
        if self._scheduling_loop.limit_reached:
            self._scheduling_loop.requeue_waiters(waiters)
            self.request_cycle()
        else:
            await self._scheduling_loop.notify_waiters(waiters)

    def _start_committed(self, committed: CommittedBatch, read_task: RunReadTask | None) -> None:
        if committed.started:
            self._reconciler.live_attempts.update(attempt for attempt, _ in committed.started)
            self._observation_requested.set()
            self._launcher.launch(committed.started, read_task)
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
            self._observation_requested.set()  # so that the engine forgets them
            self._notify_ended([ended.run for ended in recorded.ended])
        if recorded.ended or recorded.requeued:
            self._capacity_freed.set()
            self.request_cycle()

    def _notify_ended(self, ended: Sequence[RunId]) -> None:
        """Reports ended runs in the background. Runs that end meanwhile are reported together in the next
        batch."""
        self._launcher.drop_cached_runs(ended)
        self._ended_runs.extend(ended)
        if self._ended_task is None or self._ended_task.done():
            self._ended_task = self._background.spawn(run_logging_errors(self._notify_all_ended()))

    async def _notify_all_ended(self) -> None:
        while self._ended_runs:
            # launching the next runs comes before reporting the ended ones
            await _wait_at_most(self._no_cycle_requested)
            ended, self._ended_runs = self._ended_runs, []
            await run_logging_errors(self._trial_cleanup.stop_trials_of(ended))
            if self._on_ended is not None:
                runs = (await read_runs(self._runs, ended)).values()
                await asyncio.gather(
                    *(run_logging_errors(self._on_ended(run)) for run in runs if run.phase.is_final)
                )


async def _wait_at_most(event: asyncio.Event) -> None:
    """Waits for the event, but at most `MAX_OBSERVATION_WAIT_S`: a slow engine or a long cycle must not delay
    the caller."""
    if event.is_set():
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(MAX_OBSERVATION_WAIT_S):
            await event.wait()

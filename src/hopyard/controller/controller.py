"""The loops: what waits is placed and launched, what runs is observed, what ended is cleared away.

Decisions are the policy's and the store's; here are the effects and the only clock. Level-triggered throughout: a lost
message costs one tick, and a new controller finds everything by looking.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hopyard.controller.launches import Composer
from hopyard.domain.attempt import AttemptPhase, AttemptStatus, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Node, Observation, Plan
from hopyard.domain.gang import Placement
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.run import Run
from hopyard.errors import HopyardError, NotFound
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore, Recorded
from hopyard.interfaces.engine import Engine
from hopyard.interfaces.policy import SchedulingPolicy
from hopyard.interfaces.run_store import RunStore

OBSERVE_EVERY = timedelta(seconds=1)
RETRY_AFTER = timedelta(seconds=1)
DEFAULT_GRACE = timedelta(seconds=10)
ASK_AGAIN = timedelta(seconds=10)  # beyond its grace: an attempt that should have ended is asked once more
LAUNCHES_AT_ONCE = 32
FRUITLESS_PAUSE = 4  # times as long as a turn that placed nothing: a long queue on a full cluster leaves the server to requests
THREAD_FROM = 200  # waiting gangs: thinking takes so long then that requests should not wait for it
log = logging.getLogger("hopyard.controller")


class Controller:
    """One per server.

    changed: told of every run whose phase, hold or exit may be another now. ended: awaited for every run that became final.
    observe_every: how often the engine is asked while attempts are live; never while none is.
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
    ) -> None:
        self._cluster, self._runs, self._engine, self._policy, self._clock = cluster, runs, engine, policy, clock
        self._composer, self._changed, self._on_ended, self._observe_every = composer, changed, ended, observe_every
        self._wake, self._active = asyncio.Event(), asyncio.Event()
        self._quiet = asyncio.Lock()  # no launch begins between the last look at what is live and the record of what was seen
        self._slots = asyncio.Semaphore(LAUNCHES_AT_ONCE)
        self._launching: dict[AttemptId, asyncio.Task[None]] = {}
        self._effects: set[asyncio.Task[None]] = set()
        self._planned: list[asyncio.Future[None]] = []
        self._live: set[AttemptId] = set()
        self._graces: dict[AttemptId, timedelta] = {}
        self._asked: dict[AttemptId, datetime] = {}  # when an attempt that was asked to end is asked again
        self._said: dict[tuple[AttemptId, int], ReplicaStatus] = {}
        self._nodes: tuple[Node, ...] = ()
        self._placed = False  # by the last turn

    # -- what the server calls ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something waits, or something became free: schedule soon."""
        self._wake.set()

    async def wait_planned(self, timeout_s: float) -> bool:
        """Wait for a scheduling turn that begins after this call; False when none ended within `timeout_s`."""
        waiting = asyncio.get_running_loop().create_future()
        self._planned.append(waiting)
        self.wake()
        try:
            async with asyncio.timeout(timeout_s):
                await waiting
        except TimeoutError:
            return False
        return True

    async def stop(self, run: RunId, *, grace: timedelta = DEFAULT_GRACE) -> None:
        """End a run: at once when it waits, else its processes are asked and, after `grace`, killed. Raises NotFound."""
        recorded = await self._cluster.request_stop(run, now=self._clock.now())
        found = await self._runs.get(run)
        if found.attempt is not None and AttemptPhase(found.attempt.phase).live:
            self._graces[found.attempt.id] = grace
            self._asked.pop(found.attempt.id, None)
            self._ask_to_end(found.attempt.id)
        await self._react(recorded)
        if found.phase.final and recorded.changed and not recorded.ended:  # it waited: no attempt ends, the run does
            self.wake()
            self._spawn(self._tell_ended(run))

    async def hear(self, attempt: AttemptId, status: ReplicaStatus) -> bool:
        """What a replica says of itself; whether it should end. Late news of an old attempt changes nothing."""
        if self._said.get((attempt, status.rank)) != status:
            recorded = await self._cluster.record_status(AttemptStatus(attempt, (status,)), now=self._clock.now())
            self._said[attempt, status.rank] = status
            await self._react(recorded)
            if status.exit is not None and not status.exit.ok and attempt in self._live:
                self._ask_to_end(attempt)  # a gang ends together
        if attempt not in self._live:
            await self._look_what_lives()
        return attempt in self._asked or attempt not in self._live

    # -- loops ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Begins by looking at what the engine has, so that what ran before goes on."""
        self._active.set()
        self.wake()
        try:
            await self._guard(self._observe_once)
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._schedule_loop())
                loops.create_task(self._observe_loop())
        finally:
            pending = [*self._effects, *self._launching.values()]
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.gather(*pending, return_exceptions=True)

    async def _schedule_loop(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            began = self._clock.now()
            if not await self._guard(self._turn):
                self._wake.set()
                await self._clock.sleep_until(self._clock.now() + RETRY_AFTER)
                continue
            # What comes in meanwhile is placed together: a burst of submissions keeps half of the time for itself.
            ended = self._clock.now()
            if ended > began:
                await self._clock.sleep_until(ended + (ended - began) * (1 if self._placed else FRUITLESS_PAUSE))

    async def _observe_loop(self) -> None:
        while True:
            await self._active.wait()
            await self._clock.sleep_until(self._clock.now() + self._observe_every)
            self._active.clear()
            done = await self._guard(self._observe_once)
            if not done or self._launching:
                self._active.set()

    async def _guard(self, step: Callable[[], Awaitable[None]]) -> bool:
        """One step of a loop; a fault is logged and the loop goes on."""
        try:
            await step()
        except HopyardError as error:
            log.error("%s: %s", step.__name__.strip("_"), error)
        except Exception:
            log.exception("%s failed", step.__name__.strip("_"))
        else:
            return True
        return False

    # -- scheduling -----------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        planned, self._planned = self._planned, []
        try:
            self._placed = False
            snapshot = await self._cluster.snapshot(now=self._clock.now())
            if snapshot.pending:
                many = len(snapshot.pending) > THREAD_FROM
                plan = await asyncio.to_thread(self._policy, snapshot) if many else self._policy(snapshot)
                async with self._quiet:
                    result = await self._cluster.apply(plan, now=self._clock.now())
                    self._placed = bool(result.applied)
                    await self._begin(plan, set(result.applied))
                if result.rejected:
                    self.wake()
        except BaseException:
            self._planned = planned + self._planned
            raise
        for waiting in planned:
            if not waiting.done():
                waiting.set_result(None)

    async def _begin(self, plan: Plan, applied: set[str]) -> None:
        for placement in plan.place:
            if placement.gang.id in applied:
                run = await self._runs.get(RunId(placement.gang.id))
                if run.attempt is not None:
                    self._live.add(run.attempt.id)
                    self._launch(run.attempt.id, placement)
                self._changed(run.id)
        for hold in plan.hold:
            self._changed(RunId(hold.gang))

    def _launch(self, attempt: AttemptId, placement: Placement) -> None:
        if attempt not in self._launching:
            self._active.set()
            self._launching[attempt] = asyncio.get_running_loop().create_task(self._launch_one(attempt, placement))

    async def _launch_one(self, attempt: AttemptId, placement: Placement) -> None:
        try:
            async with self._slots, self._quiet:
                run = await self._runs.get(split_attempt(attempt)[0])
            if run.attempt is None or run.attempt.id != attempt or not AttemptPhase(run.attempt.phase).live:
                return
            if run.stop_requested:
                await self._give_up(attempt, "stopped before it was started")
                return
            async with self._slots:
                await self._engine.launch(await self._composer.compose(run, attempt, placement))
        except HopyardError as error:
            log.warning("attempt %s was not launched: %s", attempt, error)
            await self._give_up(attempt, error.message)
        except Exception as error:
            log.exception("attempt %s was not launched", attempt)
            await self._give_up(attempt, f"the engine failed: {type(error).__name__}: {error}")
        finally:
            self._launching.pop(attempt, None)
        if attempt in self._asked:  # asked to end while the engine did not know it yet
            self._asked.pop(attempt)
            self._ask_to_end(attempt)

    async def _give_up(self, attempt: AttemptId, reason: str) -> None:
        await self._guard_effect(self._engine.stop(attempt, grace=timedelta(0)))
        await self._react(await self._cluster.fail_launch(attempt, reason, now=self._clock.now()))
        await self._guard_effect(self._engine.forget(attempt))

    # -- observing ------------------------------------------------------------------------------------------------

    async def _observe_once(self) -> None:
        async with self._quiet:
            before = set(await self._cluster.live_attempts()) - set(self._launching)
        seen = await self._engine.observe()
        known = {status.attempt for status in seen.attempts}
        async with self._quiet:
            now = await self._cluster.live_attempts()
            # Launched while the engine looked: not seen, and yet not lost. The store's own word on it is repeated.
            young = [attempt for attempt in now if attempt not in known and attempt not in before]
            restated = tuple([await self._cluster.replicas(attempt) for attempt in young])
            whole = replace(seen, attempts=seen.attempts + restated) if restated else seen
            recorded = await self._cluster.record(self._engine.name, whole, now=self._clock.now())
        await self._react(recorded)
        for ended in recorded.ended:
            if ended.attempt not in known:  # lost, or only half launched: the engine will never show it, so this is the moment
                await self._guard_effect(self._engine.forget(ended.attempt))
        if seen.nodes != self._nodes:
            self._nodes = seen.nodes
            self.wake()
        live = await self._look_what_lives()
        self._asked = {attempt: again for attempt, again in self._asked.items() if attempt in live or attempt in known}
        await self._mend(live, known, before)
        remembered = await self._clear_away(seen, live)
        if live or remembered:
            self._active.set()

    async def _mend(self, live: Mapping[AttemptId, str], known: set[AttemptId], before: set[AttemptId]) -> None:
        """What should end is asked to; what was never started (the server ended in between) is started now."""
        unknown = [attempt for attempt in live if attempt in before and attempt not in known and attempt not in self._launching]
        for attempt, phase in live.items():
            if phase == AttemptPhase.STOPPING and attempt not in unknown:
                self._ask_to_end(attempt)
        if not unknown:
            return
        snapshot = await self._cluster.snapshot(now=self._clock.now())
        placements = {str(running.gang.id): running.placement for running in snapshot.running}
        for attempt in unknown:
            placement = placements.get(split_attempt(attempt)[0])
            if live[attempt] == AttemptPhase.STARTING and placement is not None:
                self._launch(attempt, placement)
            elif live[attempt] == AttemptPhase.STOPPING:
                await self._give_up(attempt, "stopped before it was started")

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
                self._ask_to_end(status.attempt)
        return remembered

    async def _look_what_lives(self) -> Mapping[AttemptId, str]:
        live = await self._cluster.live_attempts()
        self._live = set(live)
        for attempt in [attempt for attempt in self._graces if attempt not in live]:
            del self._graces[attempt]
        for key in [key for key in self._said if key[0] not in live]:
            del self._said[key]
        return live

    # -- effects --------------------------------------------------------------------------------------------------

    def _ask_to_end(self, attempt: AttemptId) -> None:
        """Ask once, and again when it did not end in time."""
        now = self._clock.now()
        again = self._asked.get(attempt)
        if again is not None and now < again:
            return
        grace = self._graces.get(attempt, DEFAULT_GRACE)
        self._asked[attempt] = now + grace + ASK_AGAIN
        self._active.set()
        self._spawn(self._guard_effect(self._engine.stop(attempt, grace=grace)))

    async def _react(self, recorded: Recorded) -> None:
        for run in recorded.changed:
            self._changed(run)
        for ended in recorded.ended:
            self._live.discard(ended.attempt)
            self._asked.pop(ended.attempt, None)
            self._active.set()  # the engine is to forget it
            self._spawn(self._tell_ended(ended.run))
        if recorded.ended or recorded.requeued:
            self.wake()

    async def _tell_ended(self, run_id: RunId) -> None:
        try:
            run = await self._runs.get(run_id)
        except NotFound:
            return
        if run.phase.final and self._on_ended is not None:
            await self._guard_effect(self._on_ended(run))

    async def _guard_effect(self, effect: Awaitable[None]) -> None:
        try:
            await effect
        except HopyardError as error:
            log.warning("%s", error)
        except Exception:
            log.exception("an effect failed; the next look at the engine repeats it")

    def _spawn(self, effect: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(effect)
        self._effects.add(task)
        task.add_done_callback(self._effects.discard)

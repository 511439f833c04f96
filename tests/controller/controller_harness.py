"""A controller over the real SQL store and a scripted engine, with a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hopyard.controller.controller import Controller
from hopyard.controller.launch_builder import LaunchBuilder
from hopyard.controller.stop_requests import PREEMPT_GRACE
from hopyard.domain.cluster import Node
from hopyard.domain.ids import AttemptId, NodeId, RunId
from hopyard.domain.replica import StopOrder
from hopyard.domain.resources import Gpu, Resources
from hopyard.domain.run import RoleSpec, Run, RunSpec
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.policy import StartForecast
from hopyard.interfaces.run_store import NewRun
from hopyard.scheduler.cycle.planner import Planner, plan
from hopyard.stores.sql.cluster import SqlClusterStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.runs import SqlRunStore
from hopyard.testing.clock import ManualClock
from hopyard.testing.fake_engine import FakeEngine, ReplicaScript

NODES = (
    Node(NodeId("a"), "fake", 8000, 64 * 2**30, tuple(Gpu(i, "A100") for i in range(4))),
    Node(NodeId("b"), "fake", 4000, 32 * 2**30),
)


class CallCounter:
    """Forwards calls and counts the pending ones: at zero, nothing more happens until the clock moves."""

    def __init__(self, inner: Any, harness: ControllerHarness) -> None:
        self._inner, self._harness = inner, harness

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not callable(attribute):
            return attribute

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._harness.pending_calls += 1
            try:
                return await attribute(*args, **kwargs)
            finally:
                self._harness.pending_calls -= 1

        return call


class ControllerHarness:
    """One store and one engine, over which controllers start and crash."""

    def __init__(
        self,
        folder: Path,
        *,
        script_of: Callable[..., Any] | None = None,
        observe_interval: timedelta = timedelta(seconds=1),
    ) -> None:
        self.pending_calls = 0
        self.database = Database.open(folder / "hopyard.db")
        self.clock = ManualClock()
        self.server_clock: Clock = self.clock  # the clock of the server
        self.engine = FakeEngine(self.clock, NODES)
        if script_of is not None:
            self.engine.script_of = script_of
        self.cluster: Any = CallCounter(SqlClusterStore(self.database), self)
        self.runs: Any = CallCounter(SqlRunStore(self.database), self)
        self.observe_interval = observe_interval
        self.new_policy: Callable[[], Planner] = Planner  # each server starts with a policy of its own
        self.forecast: StartForecast | None = None
        self.ended: list[RunId] = []
        self.on_ended: Callable[[Run], Awaitable[None]] | None = None
        self.controller = self.new_controller()
        self._task: asyncio.Task[None] | None = None
        self._next = 0

    def new_controller(self, *, preempt_grace: timedelta = PREEMPT_GRACE) -> Controller:
        launch_builder = LaunchBuilder(
            self.runs, server_url="http://server", sign_token=lambda attempt: f"token-of-{attempt}"
        )
        return Controller(
            cluster=self.cluster,
            runs=self.runs,
            engine=self.engine,
            policy=self.new_policy(),
            clock=self.server_clock,
            launch_builder=launch_builder,
            on_ended=self._run_ended,
            observe_interval=self.observe_interval,
            preempt_grace=preempt_grace,
            forecast=self.forecast,
        )

    async def _run_ended(self, run: Run) -> None:
        self.ended.append(run.id)
        if self.on_ended is not None:
            await self.on_ended(run)

    def start(self, *, preempt_grace: timedelta = PREEMPT_GRACE) -> None:
        self.controller = self.new_controller(preempt_grace=preempt_grace)
        self._task = asyncio.get_running_loop().create_task(self.controller.run())

    async def place_without_launching(self) -> None:
        """Applies a plan as a server does that dies before it launches anything."""
        now = self.server_clock.now()
        lease = await self.cluster.acquire_lease("server", now=now, ttl=timedelta(seconds=15))
        await self.cluster.apply(plan(await self.cluster.snapshot(now=now)), now=now, epoch=lease.epoch)

    async def crash(self) -> None:
        """Ends the server at whatever point it has reached."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def close(self) -> None:
        await self.crash()
        await self.database.close()

    async def settle(self) -> None:
        """Waits until nothing more happens without the clock being moved."""
        idle_rounds = 0
        while idle_rounds < 25:
            if self._task is not None and self._task.done():
                self._task.result()
            if self.pending_calls:
                idle_rounds = 0
                await asyncio.sleep(0.0002)
            else:
                idle_rounds += 1
                await asyncio.sleep(0)

    async def advance(self, span: timedelta) -> None:
        """Moves the clock and stops at each time at which a sleeper wakes."""
        deadline = self.clock.now() + span
        await self.settle()
        while (at := self.clock.next_at()) is not None and at <= deadline:
            self.clock.move_to(at)
            await self.settle()
        self.clock.move_to(deadline)
        await self.settle()

    async def advance_until(
        self, condition: Callable[[], Awaitable[bool]], *, within: timedelta = timedelta(hours=1)
    ) -> None:
        """Advances second by second until the condition is met."""
        deadline = self.clock.now() + within
        await self.settle()
        while not await condition():
            assert self.clock.now() < deadline, "the condition was not met in time"
            await self.advance(timedelta(seconds=1))

    async def submit(
        self,
        *,
        gpus: int = 0,
        cpu_milli: int = 1000,
        replicas: int = 1,
        max_attempts: int = 4,
        priority: int = 50,
        wake: bool = True,
        env: dict[str, str] | None = None,
    ) -> RunId:
        """Creates a run; with `wake`, through this server, which then starts a cycle."""
        self._next += 1
        role = RoleSpec(("python", "x.py"), replicas=replicas, resources=Resources(cpu_milli, 2**30, gpus))
        spec = RunSpec("p", (role,), max_attempts=max_attempts, priority=priority, env=env or {})
        run = RunId(f"run-{self._next:06d}")
        created = await self.runs.create([NewRun(run, "alice", spec)], now=self.server_clock.now())
        if wake:
            self.controller.add_submitted(created)
        return run

    async def is_final(self, run_id: RunId) -> bool:
        run: Run = await self.runs.get(run_id)
        return run.phase.is_final


def run_scenario(
    tmp_path: Path,
    scenario: Callable[[ControllerHarness], Awaitable[None]],
    script_of: Callable[[AttemptId, int], ReplicaScript] | None = None,
) -> None:
    async def run() -> None:
        harness = ControllerHarness(tmp_path, script_of=script_of)
        try:
            await scenario(harness)
        finally:
            await harness.close()

    asyncio.run(run())


class GatedStore:
    """A store that holds back writes while `writes_allowed` is unset, and snapshots while `reads_allowed` is.

    calls: the calls in their order, with `recorded` when a write has finished. called: set at the first call.
    on_stop_recorded: called after a stop request is stored.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.writes_allowed = asyncio.Event()
        self.reads_allowed = asyncio.Event()
        self.writes_allowed.set()
        self.reads_allowed.set()
        self.calls: list[str] = []
        self.on_stop_recorded: Callable[[], Awaitable[None]] | None = None
        self.called = {"record": asyncio.Event(), "snapshot": asyncio.Event()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def record_observation(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append("record")
        self.called["record"].set()
        await self.writes_allowed.wait()
        recorded = await self._inner.record_observation(*args, **kwargs)
        self.calls.append("recorded")
        return recorded

    async def request_stop(self, run: RunId, order: StopOrder, /, *, now: datetime) -> Any:
        recorded = await self._inner.request_stop(run, order, now=now)
        if self.on_stop_recorded is not None:
            await self.on_stop_recorded()
        return recorded

    async def snapshot(self, **kwargs: Any) -> Any:
        self.calls.append("snapshot")
        self.called["snapshot"].set()
        await self.reads_allowed.wait()
        return await self._inner.snapshot(**kwargs)

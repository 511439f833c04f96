"""A controller over the real SQL store and a scripted engine, with a clock that is moved by hand."""

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


class Counted:
    """Passes calls on and knows how many are on their way: none means that nothing happens any more by
    itself."""

    def __init__(self, inner: Any, world: World) -> None:
        self._inner, self._world = inner, world

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._world.under_way += 1
            try:
                return await found(*args, **kwargs)
            finally:
                self._world.under_way -= 1

        return call


class World:
    """One store and engine; controllers come and go."""

    def __init__(
        self,
        folder: Path,
        *,
        fate: Callable[..., Any] | None = None,
        observe_every: timedelta = timedelta(seconds=1),
    ) -> None:
        self.under_way = 0
        self.database = Database.open(folder / "hopyard.db")
        self.clock = ManualClock()
        self.server_clock: Clock = self.clock  # what the server takes for the time
        self.engine = FakeEngine(self.clock, NODES)
        if fate is not None:
            self.engine.script_of = fate
        self.cluster: Any = Counted(SqlClusterStore(self.database), self)
        self.runs: Any = Counted(SqlRunStore(self.database), self)
        self.observe_every = observe_every
        self.new_policy: Callable[[], Planner] = Planner  # every server begins with one of its own
        self.forecast: StartForecast | None = None
        self.ended: list[RunId] = []
        self.when_ended: Callable[[Run], Awaitable[None]] | None = None
        self.controller = self.new_controller()
        self._task: asyncio.Task[None] | None = None
        self._next = 0

    def new_controller(self, *, preempt_grace: timedelta = PREEMPT_GRACE) -> Controller:
        composer = LaunchBuilder(
            self.runs, server_url="http://server", sign_token=lambda attempt: f"token-of-{attempt}"
        )
        return Controller(
            cluster=self.cluster,
            runs=self.runs,
            engine=self.engine,
            policy=self.new_policy(),
            clock=self.server_clock,
            launch_builder=composer,
            on_ended=self._run_ended,
            observe_interval=self.observe_every,
            preempt_grace=preempt_grace,
            forecast=self.forecast,
        )

    async def _run_ended(self, run: Run) -> None:
        self.ended.append(run.id)
        if self.when_ended is not None:
            await self.when_ended(run)

    def start(self, *, preempt_grace: timedelta = PREEMPT_GRACE) -> None:
        self.controller = self.new_controller(preempt_grace=preempt_grace)
        self._task = asyncio.get_running_loop().create_task(self.controller.run())

    async def place_without_launching(self) -> None:
        """What a server does that ends between applying a plan and acting on it."""
        now = self.server_clock.now()
        lease = await self.cluster.acquire_lease("server", now=now, ttl=timedelta(seconds=15))
        await self.cluster.apply(plan(await self.cluster.snapshot(now=now)), now=now, epoch=lease.epoch)

    async def crash(self) -> None:
        """The server is gone, at whatever point it was."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def close(self) -> None:
        await self.crash()
        await self.database.close()

    async def settle(self) -> None:
        """Until nothing happens any more without the clock being moved."""
        quiet = 0
        while quiet < 25:
            if self._task is not None and self._task.done():
                self._task.result()
            if self.under_way:
                quiet = 0
                await asyncio.sleep(0.0002)
            else:
                quiet += 1
                await asyncio.sleep(0)

    async def advance(self, span: timedelta) -> None:
        """Move the clock, stopping wherever somebody wakes."""
        until = self.clock.now() + span
        await self.settle()
        while (at := self.clock.next_at()) is not None and at <= until:
            self.clock.move_to(at)
            await self.settle()
        self.clock.move_to(until)
        await self.settle()

    async def until(
        self, met: Callable[[], Awaitable[bool]], *, within: timedelta = timedelta(hours=1)
    ) -> None:
        """Advance a second at a time until the condition is met."""
        deadline = self.clock.now() + within
        await self.settle()
        while not await met():
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
        """wake: through this server."""
        self._next += 1
        role = RoleSpec(("python", "x.py"), replicas=replicas, resources=Resources(cpu_milli, 2**30, gpus))
        spec = RunSpec("p", (role,), max_attempts=max_attempts, priority=priority, env=env or {})
        run = RunId(f"run-{self._next:06d}")
        made = await self.runs.create([NewRun(run, "alice", spec)], now=self.server_clock.now())
        if wake:
            self.controller.add_submitted(made)
        return run

    async def final(self, run: RunId) -> bool:
        found: Run = await self.runs.get(run)
        return found.phase.is_final


def play(
    tmp_path: Path,
    scene: Callable[[World], Awaitable[None]],
    fate: Callable[[AttemptId, int], ReplicaScript] | None = None,
) -> None:
    async def whole() -> None:
        world = World(tmp_path, fate=fate)
        try:
            await scene(world)
        finally:
            await world.close()

    asyncio.run(whole())


class Gated:
    """A store that writes nothing down while `gate` is closed, and tells of no state while `looking` is.
    calls: what it was asked, and `recorded` when that was done. looks: called once it is written down that a
    run should end."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.gate = asyncio.Event()
        self.looking = asyncio.Event()
        self.gate.set()
        self.looking.set()
        self.calls: list[str] = []
        self.looks: Callable[[], Awaitable[None]] | None = None
        self.asked = {"record": asyncio.Event(), "snapshot": asyncio.Event()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def record_observation(self, *given: Any, **named: Any) -> Any:
        self.calls.append("record")
        self.asked["record"].set()
        await self.gate.wait()
        recorded = await self._inner.record_observation(*given, **named)
        self.calls.append("recorded")
        return recorded

    async def request_stop(self, run: RunId, /, *, now: datetime) -> Any:
        recorded = await self._inner.request_stop(run, now=now)
        if self.looks is not None:
            await self.looks()
        return recorded

    async def snapshot(self, **given: Any) -> Any:
        self.calls.append("snapshot")
        self.asked["snapshot"].set()
        await self.looking.wait()
        return await self._inner.snapshot(**given)

"""Two servers on one database: one decides; whoever was frozen past its lease finds that another one does,
and does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from hopyard.controller.controller import Controller
from hopyard.controller.launch_builder import LaunchBuilder
from hopyard.domain.cluster import Observation, Plan, PlanResult, Snapshot
from hopyard.domain.ids import NodeId, RunId
from hopyard.domain.run import RunPhase
from hopyard.errors import NotLeader
from hopyard.interfaces.cluster_store import Lease
from hopyard.scheduler.cycle.planner import Planner
from hopyard.stores.sql.cluster import SqlClusterStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.runs import SqlRunStore
from hopyard.testing.fake_engine import ReplicaScript
from tests.controller.world import NODES, Counted, World
from tests.controller.world import play as play_alone

TTL = timedelta(seconds=15)
LONG = ReplicaScript(run_time=timedelta(hours=2))


class Frozen(SqlClusterStore):
    """Stops in the middle of a turn, with a plan in its hands and without renewing its lease, until it is let
    go on."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.freezes, self.frozen, self.thawed = False, asyncio.Event(), asyncio.Event()
        self.refused: list[Plan] = []
        self.was_refused = asyncio.Event()

    async def acquire_lease(self, holder: str, /, *, now: Any, ttl: timedelta) -> Lease | None:
        if self.frozen.is_set():
            await self.thawed.wait()
        return await super().acquire_lease(holder, now=now, ttl=ttl)

    async def apply(self, plan: Plan, /, *, now: Any, epoch: int) -> PlanResult:
        if self.freezes and plan.place:
            self.frozen.set()
            await self.thawed.wait()
        try:
            return await super().apply(plan, now=now, epoch=epoch)
        except NotLeader:
            self.refused.append(plan)
            self.was_refused.set()
            raise


class Server:
    """One more server on the world's database and engine, with stores of its own."""

    def __init__(self, world: World, folder: Path, holder: str) -> None:
        self.database = Database.open(folder / "hopyard.db")
        self.cluster = Frozen(self.database)
        runs: Any = Counted(SqlRunStore(self.database), world)
        cluster: Any = self.cluster if holder == "frozen" else Counted(self.cluster, world)
        self.controller = Controller(
            cluster=cluster,
            runs=runs,
            engine=world.engine,
            policy=Planner(),
            clock=world.clock,
            launch_builder=LaunchBuilder(runs, server_url="http://server", sign_token=str),
            holder=holder,
            lease=TTL,
        )
        self._task = asyncio.get_running_loop().create_task(self.controller.run())

    async def end(self) -> None:
        """Its loops; what it has in the lease stays."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def close(self) -> None:
        await self.end()
        await self.database.close()


def play(tmp_path: Path, story: Callable[[World, Server, Server], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        world = World(tmp_path, fate=lambda _attempt, _rank: LONG)
        first = Server(world, tmp_path, "frozen")
        try:
            while not world.engine.started_attempts:  # it leads, and does so on purpose of a first run
                if not world._next:
                    await world.submit()
                first.controller.request_cycle()
                await asyncio.sleep(0.005)
                await world.advance(timedelta(seconds=1))
            second = Server(world, tmp_path, "other")
            try:
                await world.settle()
                await story(world, first, second)
            finally:
                await second.close()
        finally:
            await first.close()
            await world.close()

    asyncio.run(scenario())


async def freeze(world: World, server: Server, **asked: Any) -> RunId:
    """Submit a run; the server stops when it is about to start it."""
    server.cluster.freezes = True
    run = await world.submit(**asked)
    server.controller.request_cycle()
    while not server.cluster.frozen.is_set():
        await asyncio.sleep(0.005)
        await world.advance(timedelta(milliseconds=100))
    return run


async def thaw(world: World, server: Server) -> None:
    server.cluster.freezes = False
    server.cluster.thawed.set()
    await server.cluster.was_refused.wait()
    await world.advance(timedelta(seconds=5))


def test_a_leader_that_was_frozen_finds_that_another_one_decides(tmp_path: Path) -> None:
    async def story(world: World, first: Server, second: Server) -> None:
        run = await freeze(world, first, gpus=4)
        await world.advance(timedelta(seconds=5))
        second.controller.request_cycle()
        await world.advance(timedelta(seconds=5))
        assert len(world.engine.started_attempts) == 1, "the lease still holds"
        await world.advance(TTL)
        second.controller.request_cycle()
        await world.until(lambda: has_started(world, run), within=timedelta(minutes=1))
        starts = list(world.engine.started_attempts)
        # its plan would start a run whose GPUs are to be another's now
        urgent = await world.submit(gpus=4, priority=90)
        second.controller.request_cycle()
        await world.until(lambda: has_started(world, urgent), within=timedelta(minutes=3))
        await thaw(world, first)
        assert [str(plan.place[0].gang.id) for plan in first.cluster.refused] == [str(run)]
        assert world.engine.started_attempts == [*starts, f"{urgent}.1"]
        assert (await world.runs.get(run)).phase is RunPhase.QUEUED
        assert [one.number for one in await world.runs.attempts(run)] == [1]
        assert second.cluster.refused == []

    play(tmp_path, story)


def test_a_leader_that_resigns_is_followed_at_once(tmp_path: Path) -> None:
    async def story(world: World, first: Server, second: Server) -> None:
        await first.end()
        await first.controller.release_leadership()
        run = await world.submit(gpus=1)
        second.controller.request_cycle()
        await world.until(lambda: has_started(world, run), within=timedelta(seconds=6))
        assert len(world.engine.started_attempts) == 2

    play(tmp_path, story)


def test_nodes_that_the_leader_cannot_use_are_not_ready_at_any_server(tmp_path: Path) -> None:
    """So `hop why` and `hop reserve` say what the server that leads will do."""

    async def scene(world: World) -> None:
        far = replace(NODES[0], id=NodeId("far"), engine="another")
        await world.cluster.record_observation("another", Observation((far,)), now=world.clock.now())
        assert ready_in(await world.controller.snapshot()) == {"far"}, "nobody has decided yet"
        world.start()
        held, waits = await world.submit(gpus=4), await world.submit(gpus=4)
        await world.advance(timedelta(seconds=3))
        assert await has_started(world, held) and not await has_started(world, waits)
        assert ready_in(await world.controller.snapshot()) == {"a", "b"}
        follower = world.new_controller()
        assert ready_in(await follower.snapshot()) == {"a", "b"}, "it says what the leader can use"

    play_alone(tmp_path, scene, lambda _attempt, _rank: LONG)


def test_who_loses_the_lease_within_a_turn_still_places_on_its_own_nodes(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        far = replace(NODES[0], id=NodeId("far"), engine="another")
        await world.cluster.record_observation("another", Observation((far,)), now=world.clock.now())
        world.start()
        held, waits = await world.submit(gpus=4), await world.submit(gpus=4)
        await world.advance(timedelta(seconds=3))
        inner = world.cluster._inner
        snapshot, looked = inner.snapshot, 0

        async def taken_meanwhile(**given: Any) -> Snapshot:
            nonlocal looked
            looked += 1
            if looked == 1:
                # as writing down why others wait finds, which goes on beside a turn
                world.controller._leadership.mark_lost()
            found: Snapshot = await snapshot(**given)
            return found

        inner.snapshot = taken_meanwhile
        world.controller.request_cycle()
        await world.advance(timedelta(seconds=3))
        assert looked and await has_started(world, held) and not await has_started(world, waits)
        assert (await world.runs.get(waits)).phase is RunPhase.QUEUED

    play_alone(tmp_path, scene, lambda _attempt, _rank: LONG)


def ready_in(snapshot: Snapshot) -> set[str]:
    return {str(node.id) for node in snapshot.nodes.values() if node.ready}


def test_who_decides_again_after_another_server_looks_at_who_waits(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.start()
        await world.submit(gpus=4)
        await world.submit(gpus=4)
        await world.advance(timedelta(seconds=3))
        inner = world.cluster._inner
        lead = inner.acquire_lease

        async def refused(holder: str, /, **given: Any) -> None: ...

        inner.acquire_lease = refused  # what this server has in the lease runs out
        await world.advance(timedelta(seconds=20))
        assert await lead("another", now=world.clock.now(), ttl=timedelta(seconds=15)) is not None
        third = await world.submit(gpus=4, wake=False)  # through the other server, which ends
        inner.acquire_lease = lead
        await world.advance(timedelta(seconds=30))
        latest = world.controller.latest_plan
        assert latest is not None and third in {gang.id for gang in latest[0].pending}

    play_alone(tmp_path, scene, lambda _attempt, _rank: LONG)


def test_a_server_that_decides_after_an_idle_one_opens_its_nodes(tmp_path: Path) -> None:
    """The other server has recorded that they are not ready while it decided, and nothing lives that would
    make this one look."""

    async def scene(world: World) -> None:
        world.start()
        await world.until(partial(world.final, await world.submit(gpus=1)))
        await world.advance(timedelta(seconds=30))
        assert await world.cluster.acquire_lease("another", now=world.clock.now(), ttl=TTL) is not None
        await world.cluster.record_observation(
            world.engine.name, Observation((), ()), now=world.clock.now(), launched=()
        )
        assert ready_in(await world.cluster.snapshot(now=world.clock.now())) == set()
        await world.advance(timedelta(seconds=30))
        await world.until(partial(world.final, await world.submit(gpus=4)), within=timedelta(minutes=1))

    play_alone(tmp_path, scene, lambda _attempt, _rank: ReplicaScript(run_time=timedelta(seconds=2)))


async def has_started(world: World, run: RunId) -> bool:
    return f"{run}.1" in world.engine.started_attempts
